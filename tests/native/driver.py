"""Run by test_sanitized.py in a process of its own: searches and steps over packed models, for some seconds.

python driver.py LIBRARY SECONDS SEED MODEL...
"""

from __future__ import annotations

import random
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from glassformer.runtime import library

library.FILE = Path(sys.argv[1])

from glassformer.runtime.engine import EngineUnavailable, NativeModel  # noqa: E402


def once(file: str, seed: int) -> None:
    r = random.Random(seed)
    native = NativeModel.open(file, threads=r.choice([1, 2, 3]), kernels=r.choice(library.kernel_sets()))
    source_vocab, vocab = native.model.source_vocab, native.model.target_vocab

    def ids(below: int, most: int) -> list[int]:
        return [r.randrange(below) for _ in range(r.randint(0, most))]

    count = r.randint(0, 6)
    sources = [ids(source_vocab, 30) for _ in range(count)]
    prefixes = [ids(vocab, 5) for _ in range(count)]
    beam = r.choice([1, 2, 5, 40])
    found = native.search(
        sources,
        prefixes=prefixes,
        limits=[r.randint(1, 20) for _ in range(count)],
        banned_ids=ids(vocab + 20, 9),
        banned_phrases=[[r.randrange(vocab), *ids(vocab, 2)] for _ in range(r.choice([0, 0, 30]))],
        no_repeat_ngram=r.choice([0, 0, 1, 3]),
        beam_size=beam,
        n_best=r.randint(1, beam),
        length_penalty=r.random() * 2,
        bos_id=r.randrange(vocab),
        eos_id=r.choice([-1, r.randrange(vocab)]),
        workers=r.randint(0, 4),
    )
    assert len(found) == count
    native.score(sources, prefixes, bos_id=1)
    heads = [(layer, r.randrange(count)) for layer, count in native.cross_heads.items() for _ in range(2)]
    for weights in native.cross_attention(sources, prefixes, heads):
        weights.sum()
    state = native.start(sources)
    for _ in range(8):
        if not state.rows or r.random() < 0.2:
            break
        state.step(np.array([[r.randrange(vocab) for _ in range(r.randint(1, 3))]] * state.rows))
        state.select([r.randrange(state.rows) for _ in range(r.randint(0, 4))])
        state.truncate(r.randint(0, state.length))


def damaged(file: str, seed: int) -> None:
    """A file with some bytes of its header changed is refused; one whose numbers changed is too, or gives others."""
    r = random.Random(seed)
    content = bytearray(Path(file).read_bytes())
    # Sums of an int8 row that are no sums overflow, which is harmless, but the sanitizer would tell of it.
    header, behind = r.random() < 0.5 or file.endswith("int8"), 16 + int.from_bytes(content[8:12], "little")
    for place in {r.randrange(0, behind) if header else r.randrange(behind, len(content)) for _ in range(20)}:
        content[place] ^= 1 << r.randrange(8)
    other = Path(f"{file}.{seed}.damaged")
    other.write_bytes(content)
    try:
        once(str(other), seed)
    except (FloatingPointError, EngineUnavailable):
        pass
    else:
        assert not header
    finally:
        other.unlink()


def main() -> None:
    end, files = time.monotonic() + float(sys.argv[2]), sys.argv[4:]
    r, rounds = random.Random(int(sys.argv[3])), 0
    with ThreadPoolExecutor(3) as pool:
        while time.monotonic() < end:
            work = [(r.choice([once, once, damaged]), r.choice(files), r.randrange(1 << 30)) for _ in range(6)]
            for future in [pool.submit(function, *arguments) for function, *arguments in work]:
                future.result()
            rounds += 1
    print(rounds)


if __name__ == "__main__":
    main()
