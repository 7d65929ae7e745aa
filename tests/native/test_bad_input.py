"""What cannot be computed is refused with an exception that says so, and never ends the process."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch

from glassformer.errors import UserError
from glassformer.runtime import format as packed_format
from glassformer.runtime import library
from glassformer.runtime.engine import EngineUnavailable, NativeModel
from tests.native.models import BOS, EOS, drawn, module_of, opened, pack, sources

PLAIN = dict(prefixes=None, bos_id=BOS, eos_id=EOS)


@pytest.fixture(scope="module")
def config():
    return drawn(
        500,
        d_model=12,
        embed=dict(vocab_size=30),
        target_embed=dict(vocab_size=20),
        encoder=dict(
            position=dict(type="learned", max_len=40),
            blocks=[dict(mixer=dict(n_heads=2), ffn=dict(d_ff=20))],
        ),
        decoder=dict(
            position=dict(type="sinusoidal", max_len=30),
            blocks=[dict(mixer=dict(n_heads=2, causal=True), cross=dict(n_heads=2), ffn=dict(d_ff=20))],
        ),
    )


@pytest.fixture(scope="module")
def file(config, tmp_path_factory):
    return pack(module_of(config), config, tmp_path_factory.mktemp("packed") / "model.packed")


@pytest.fixture
def native(file):
    return NativeModel.open(file, threads=2)


# --- requests --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong, message",
    [
        (dict(sources=[[3], [30]]), "source ids from 30 to 30 are not from 0 to 29"),
        (dict(sources=[[-1], [4]]), "source ids from -1"),
        (dict(sources=[[3], [2**40]]), "source ids"),
        (dict(sources=[[3] * 41, [4]]), "a source of 41 tokens is beyond the model's 40"),
        (dict(prefixes=[[20], []]), "target ids from 20"),
        (dict(prefixes=[[], [-1]]), "target ids from -1"),
        (dict(prefixes=[[]]), "2 sources, 1 prefixes, 2 limits"),
        (dict(limits=[5]), "2 sources, 2 prefixes, 1 limits"),
        (dict(limits=[5, 31]), "limits .5, 31.: must be from 1 to the model's 30"),
        (dict(limits=[0, 5]), "limits .0, 5."),
        (dict(bos_id=20), "target ids from 20"),
        (dict(bos_id=-1), "target ids from -1"),
        (dict(beam_size=0), "n_best 1 of a beam of 0"),
        (dict(beam_size=2, n_best=3), "n_best 3 of a beam of 2"),
        (dict(n_best=0), "n_best 0"),
        (dict(no_repeat_ngram=-1), "no_repeat_ngram must be 0 or more"),
        (dict(banned_phrases=[[3], []]), "a banned phrase one token or more"),
    ],
)
def test_a_request_that_leads_out_of_the_model_is_refused(native, wrong, message):
    fine = dict(sources=[[3], [4]], limits=[5, 30], bos_id=BOS, eos_id=EOS)
    assert len(native.search(**fine)) == 2
    with pytest.raises(ValueError, match=message):
        native.search(**{**fine, **wrong})


def test_a_step_that_leads_out_of_the_model_is_refused_and_leaves_the_state_as_it_was(native):
    for given in ([[30]], [[-1]], [[3] * 41]):
        with pytest.raises(ValueError, match="source"):
            native.start(given)
    state, other = native.start([[3, 4], [5]]), native.start([[3, 4], [5]])
    state.step(np.array([[1], [1]]))
    for tokens in ([[20], [3]], [[3], [-1]]):
        with pytest.raises(ValueError, match="target id"):
            state.step(np.array(tokens))
    for tokens, message in (([[3]], "1 tokens for 2 rows"), ([[3] * 30] * 2, "target position 31 is beyond")):
        with pytest.raises(ValueError, match=message):
            state.step(np.array(tokens))
    for length in (-1, 2):
        with pytest.raises(ValueError, match=f"cannot truncate 1 positions to {length}"):
            state.truncate(length)
    for index in ([2], [-1], [0, 5]):
        with pytest.raises(IndexError):
            state.select(index)
    other.step(np.array([[1], [1]]))
    assert np.array_equal(state.step(np.array([[4], [7]])), other.step(np.array([[4], [7]])))
    assert state.step(np.full((2, 28), 3)).shape == (2, 20) and state.length == 30


def test_scoring_refuses_the_same(native):
    for given, target in (([30], [4]), ([3], [20]), ([3] * 41, [4]), ([3], [4] * 31)):
        with pytest.raises(ValueError):
            native.score([given], [target], bos_id=BOS)
    assert native.score([[3], [3], []], [[], [4, EOS], [4]], bos_id=BOS)[0] == []


def test_the_ends_of_what_is_allowed_are_allowed(native, config):
    assert native.search([], limits=[], **PLAIN) == []
    assert native.start([]).rows == 0
    module = module_of(config)
    for given in ([[]], [[], [29] * 40, []]):
        (first, *_) = native.search(given, limits=[30] * len(given), beam_size=3, **PLAIN)
        assert first and all(np.isfinite(h.token_logprobs).all() for h in first)
    # A source of no token: cross-attention gives zeros, as in the module.
    state = module.start(torch.zeros(1, 1, dtype=torch.long), torch.zeros(1, 1, dtype=torch.bool))
    wanted = module.step(torch.tensor([[BOS]]), state)
    assert np.allclose(native.start([[]]).step(np.array([[BOS]])), wanted.numpy(), atol=1e-4)
    for beam in (64, 512):
        (found,) = native.search([[3, 4, 5]], limits=[9], beam_size=beam, n_best=beam, **PLAIN)
        assert len(found) == beam and len({(h.ids, h.finished) for h in found}) == beam
    # All banned but the prefix: what stands is all there is.
    (stuck,) = native.search([[3]], limits=[9], prefixes=[[4, 5]], banned_ids=range(20), bos_id=BOS, eos_id=EOS)[0]
    assert stuck.ids == (4, 5) and not stuck.finished
    ((unmoved,),) = native.search([[3]], limits=[9], banned_ids=[*range(20), -4, 25, 10**6], **PLAIN)
    assert unmoved.ids == ()


def test_long_inputs(tmp_path):
    config = drawn(
        501,
        d_model=8,
        encoder=dict(blocks=[dict(mixer=dict(n_heads=1))]),
        decoder=dict(blocks=[dict(mixer=dict(n_heads=1, causal=True), cross=dict(n_heads=1))]),
    )
    native = opened(module_of(config), config, tmp_path, threads=2)
    assert native.source_limit is None
    given = sources(config.embed.vocab_size, [10_000, 3, 2_500])
    found = native.search(given, limits=[20, 3000, 20], bos_id=BOS, eos_id=-1)
    assert [len(h[0].ids) for h in found] == [20, 3000, 20]
    assert native.search(given[1:2], limits=[3000], bos_id=BOS, eos_id=-1) == found[1:2]


# --- threads ---------------------------------------------------------------------------------------------------------


def test_any_number_of_threads(file):
    for threads in (0, -1):
        with pytest.raises(ValueError, match=f"threads {threads}: must be 1 or more"):
            NativeModel.open(file, threads=threads)
    few, many = NativeModel.open(file, threads=1), NativeModel.open(file, threads=40)
    assert NativeModel.open(file).threads >= 1
    for workers in (0, 1, 1000):
        options = dict(sources=[[3, 4]] * 5, limits=[4] * 5, workers=workers, bos_id=BOS, eos_id=EOS)
        assert many.search(**options) == few.search(**options)
    tokens = np.array([[1]])
    assert np.array_equal(many.start([[3]]).step(tokens), few.start([[3]]).step(tokens))


# --- numbers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
def test_weights_that_overflow_are_told_of(config, precision, tmp_path):
    module = module_of(config)
    module.encoder.layers[0].ffn.up.weight.fill_(3e38)
    module.encoder.layers[0].ffn.down.weight.fill_(3e38)
    native = opened(module, config, tmp_path, precision)
    with pytest.raises(FloatingPointError, match="NaN logits at target position 1"):
        native.search([[3, 4]], limits=[5], **PLAIN)
    assert np.isnan(native.start([[3, 4]]).step(np.array([[BOS]]))).any()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_no_numbers_are_not_packed(config, value, tmp_path):
    for name, parameter in module_of(config).named_parameters():
        module = module_of(config)
        module.get_parameter(name).view(-1)[-1] = value
        with pytest.raises(UserError, match="holds NaN or infinity"):
            pack(module, config, tmp_path / "model.packed")
        assert parameter.isfinite().all() and not list(tmp_path.iterdir())


@pytest.mark.parametrize("eps", [float("inf"), float("nan"), 1e300])
def test_numbers_that_float32_does_not_hold_are_not_packed(config, eps, tmp_path):
    layers = list(config.encoder.blocks)
    norm = layers[0].norm.model_copy(update={"eps": eps})
    encoder = config.encoder.model_copy(update={"blocks": (layers[0].model_copy(update={"norm": norm}), *layers[1:])})
    with pytest.raises(UserError, match="eps is .*; it must be a finite number"):
        pack(module_of(config), config.model_copy(update={"encoder": encoder}), tmp_path / "model.packed")


def test_a_table_of_absurdly_many_positions_is_not_packed(config, tmp_path):
    position = config.decoder.position.model_copy(update={"max_len": 2**31 - 1})
    decoder = config.decoder.model_copy(update={"position": position})
    with pytest.raises(EngineUnavailable, match="a table of 2147483647 positions"):
        pack(module_of(config), config.model_copy(update={"decoder": decoder}), tmp_path / "model.packed")


def test_weights_of_another_shape_than_the_configuration_says_are_not_packed(config, tmp_path):
    module = module_of(config)
    for name, parameter in list(module.named_parameters()):
        other = module_of(config)
        owner, _, last = name.rpartition(".")
        setattr(other.get_submodule(owner), last, torch.nn.Parameter(torch.cat([parameter, parameter])))
        with pytest.raises(UserError, match=f"{name} has shape .*, but config.json says"):
            pack(other, config, tmp_path / "model.packed")


# --- files -----------------------------------------------------------------------------------------------------------


def refused(file: Path) -> str:
    with pytest.raises(EngineUnavailable) as caught:
        NativeModel.open(file, threads=1)
    message = str(caught.value)
    assert file.name in message and "\n" not in message
    return message


def test_a_file_cut_short_anywhere_or_with_more_behind_is_refused(file, tmp_path):
    whole, cut = file.read_bytes(), tmp_path / "cut"
    header = int.from_bytes(whole[8:12], "little")
    places = {*range(20), *range(16 + header - 2, 16 + header + 70), len(whole) // 2, len(whole) - 1}
    for place in sorted(places):
        cut.write_bytes(whole[:place])
        refused(cut)
    cut.write_bytes(whole + b"\0")
    refused(cut)
    cut.unlink()
    refused(cut)
    cut.mkdir()
    refused(cut)


@pytest.mark.parametrize("damage", ["truncated", "emptied", "a byte changed", "without its sum"])
def test_a_library_that_is_not_what_was_built_is_refused_before_it_is_loaded(damage, tmp_path):
    copy, whole = tmp_path / library.FILE.name, library.FILE.read_bytes()
    middle = len(whole) // 2
    content = {
        "truncated": whole[:middle],
        "emptied": b"",
        "a byte changed": whole[:middle] + b"?" + whole[middle + 1 :],
    }
    copy.write_bytes(content.get(damage, whole))
    if damage != "without its sum":
        name = f"{copy.name}.sum"
        (tmp_path / name).write_bytes(library.FILE.with_name(name).read_bytes())
    code = f"""
import sys
from pathlib import Path
from glassformer.runtime import library
library.FILE = Path({str(copy)!r})
try:
    library.library()
except library.EngineUnavailable as error:
    print(error)
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.returncode == 0 and ran.stdout.endswith("install the package again\n"), ran.stderr


def test_a_file_of_another_kind_or_version_is_refused(file, tmp_path):
    whole, other = file.read_bytes(), tmp_path / "other"
    for content in (b"", b"{}", bytes(5000), b"GLASSPK", b"\x93NUMPY" + bytes(100), whole[1:]):
        other.write_bytes(content)
        refused(other)
    for version in {*range(256)} - {packed_format.VERSION}:
        other.write_bytes(whole[:7] + bytes([version]) + whole[8:])
        assert f"packed in version {version}, and this glassformer reads {packed_format.VERSION}" in refused(other)
    other.write_bytes(whole[:8] + bytes(len(whole) - 8))
    refused(other)


def test_every_damaged_byte_of_the_header_is_noticed(file, tmp_path):
    whole, other = bytearray(file.read_bytes()), tmp_path / "other"
    r = random.Random(0)
    length = int.from_bytes(whole[8:12], "little")
    for place in {*range(16), *r.sample(range(16, 16 + length), 300)}:
        damaged = bytearray(whole)
        damaged[place] ^= 1 << r.randrange(8)
        other.write_bytes(damaged)
        refused(other)


def rewritten(file: Path, to: Path, change) -> Path:
    """The file with another header, whose sum is right."""
    header, data, start = packed_format.read(file)
    header = change(header) or header
    text = json.dumps(header).encode()
    front = packed_format.MAGIC + bytes([packed_format.VERSION]) + len(text).to_bytes(4, "little")
    front += zlib.crc32(text).to_bytes(4, "little") + text
    to.write_bytes(front + bytes(-len(front) % packed_format.ALIGNMENT) + data[start:])
    return to


def test_arrays_that_lie_outside_the_file_are_refused(file, tmp_path):
    size = packed_format.read(file)[0]["size"]
    for array in ({"at": size, "bytes": 64}, {"at": -64, "bytes": 64}, {"at": 0, "bytes": size + 1}, {"at": 1 << 62}):
        array = {"bytes": 1 << 62, **array}

        def change(header, array=array):
            header["model"]["decoder"]["layers"][0]["qkv"]["weight"] = array

        assert "damaged" in refused(rewritten(file, tmp_path / "other", change))
    assert NativeModel.open(rewritten(file, tmp_path / "same", lambda header: None), threads=1)


@pytest.mark.parametrize("value", ["x", [], {}, [1], {"at": "0", "bytes": 4}, {"at": None, "bytes": None}])
def test_a_header_of_the_wrong_kinds_is_refused(file, value, tmp_path):
    def change(header):
        header["model"]["output"]["weight"] = value

    assert "damaged" in refused(rewritten(file, tmp_path / "other", change))
    refused(rewritten(file, tmp_path / "other", lambda header: header.update(size=value)))
    refused(rewritten(file, tmp_path / "other", lambda header: header.pop("model") and None))


def test_a_batch_of_more_than_a_hundred_thousand_tokens(native):
    """Shares of so many rows, reckoned in 32 bits, overflow."""
    given = [[3, 4, 5, 6] * 10, [7] * 40]
    state = native.start(given * 1500)  # 120,000 rows of the encoder
    state.select([0, 1, 2998, 2999])
    few = native.start(given).step(np.array([[BOS], [BOS]]))
    assert np.array_equal(state.step(np.full((4, 1), BOS)), np.concatenate([few, few]))


def test_kernels_that_are_not_there_are_named(file):
    with pytest.raises(EngineUnavailable, match="no kernels 'sse9' here; there are .*portable"):
        NativeModel.open(file, kernels="sse9")


# --- memory ----------------------------------------------------------------------------------------------------------

HUNGRY = """
import resource, sys
from pathlib import Path
from glassformer.runtime import library
library.FILE = Path(sys.argv[2])
from glassformer.runtime.engine import NativeModel
native = NativeModel.open(sys.argv[1], threads=1)
ask = dict(limits=[12], beam_size=512, bos_id=1, eos_id=2)
small = dict(limits=[5], bos_id=1, eos_id=2)
before = native.search([[3, 4]], **small)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
failures = 0
for room in range(1, 40):
    resource.setrlimit(resource.RLIMIT_AS, (used + room * 300_000, resource.RLIM_INFINITY))
    for call in (lambda: native.search([[3] * 40], **ask), lambda: native.start([[3] * 40] * 3000)):
        try:
            call()
        except MemoryError:
            failures += 1
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
assert native.search([[3, 4]], **small) == before
print(failures)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux holds a process to a size of memory")
def test_a_lack_of_memory_is_an_exception(file):
    # With one thread: where another one lacks the memory for its first exception, glibc ends the process.
    command = [sys.executable, "-c", HUNGRY, str(file), str(library.FILE)]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert int(ran.stdout) > 20


def test_lost_pages_are_seen(file, tmp_path):
    data = bytearray(file.read_bytes())
    lost = tmp_path / "lost.packed"
    for first in range(len(data) - 200_000 if len(data) > 250_000 else len(data) // 2, len(data) - 4, 50_000):
        broken = data[:first] + bytes(len(data) - first)
        lost.write_bytes(broken)
        with pytest.raises(EngineUnavailable, match="truncated or damaged"):
            NativeModel.open(lost)
