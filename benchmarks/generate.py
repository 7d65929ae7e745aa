"""How fast does a language model write? GPT-2's shape, one stream: a prompt of 32 tokens, then exactly 128 more.

Random weights, the same for everyone, greedy, and the token that ends a text is banned. It says nothing of quality.
"""

from __future__ import annotations

import importlib
import random
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.foreign import PRECISIONS, made, pack, packed_model, write_ctranslate2
from benchmarks.llama_cpp import QUANTISATIONS, write_gguf, writer_of
from benchmarks.measure import Call, Failed, Noted, Options, Question, System
from benchmarks.models import FOLDER, LOUDNESS
from benchmarks.translate import check_tokens

PRESETS = {"gpt2": (32, 128), "gpt2-tiny": (8, 16)}
"""Preset → tokens of the prompt, and of what is written behind it."""


def directory(preset: str) -> Path:
    """The random model, in Hugging Face's form."""
    return FOLDER / f"random-{preset}"


def _make(preset: str, options: Options) -> None:
    folder = directory(preset)
    if not folder.exists():
        import torch

        from glassformer.families import build
        from glassformer.interop import hf

        torch.manual_seed(0)
        model = build(preset)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name.endswith((".out.weight", ".down.weight")):
                    parameter *= LOUDNESS
        hf.save(folder, model)
    pack(folder)
    end = _vocab_size(folder) - 1
    for write in (partial(write_ctranslate2, kind="GPT2Loader"), write_gguf):
        with suppress(ModuleNotFoundError):  # its systems will say so
            write(folder, end=end)


def _vocab_size(folder: Path) -> int:
    from glassformer.interop.hf import model_config

    return model_config(folder).target_vocab_size


def _prompt(preset: str) -> tuple[list[int], int, int]:
    """The prompt, how many tokens follow, and the id that ends a text: the last, as GPT-2's is."""
    vocab_size = {"gpt2": 50257, "gpt2-tiny": 64}[preset]
    length, count = PRESETS[preset]
    return random.Random(0).choices(range(vocab_size - 1), k=length), count, vocab_size - 1


def native(preset: str, *, precision: str, threads: int) -> Call:
    """The native engine's fused search."""
    model = packed_model(directory(preset), precision, threads)
    prompt, count, end = _prompt(preset)

    def call() -> list[list[int]]:
        ((found,),) = model.search([prompt], limits=[count], bos_id=0, eos_id=-1, banned_ids=[end])
        return [list(found.ids)]

    return Noted(call, model.kernels)


def ctranslate2(preset: str, *, precision: str, threads: int) -> Call:
    """CTranslate2's generator."""
    generator = importlib.import_module("ctranslate2").Generator(
        str(made(directory(preset), f"ctranslate2-{precision}")), compute_type=precision, intra_threads=threads
    )
    prompt, count, _ = _prompt(preset)
    pieces = [list(map(str, prompt))]

    def call() -> list[list[int]]:
        (result,) = generator.generate_batch(
            pieces, beam_size=1, min_length=count, max_length=count, include_prompt_in_result=False
        )
        return [result.sequences_ids[0]]

    return call


def llama_cpp(preset: str, *, quantisation: str, threads: int) -> Call:
    """llama.cpp, through llama-cpp-python."""
    prompt, count, end = _prompt(preset)
    return writer_of(directory(preset), quantisation, threads, prompt, count, end)


def hugging_face(preset: str, *, precision: str, threads: int) -> Call:
    """Hugging Face's GPT-2, by ``generate``."""
    import torch

    torch.set_num_threads(threads)
    model = importlib.import_module("transformers").GPT2LMHeadModel.from_pretrained(directory(preset)).eval()
    if precision == "bf16":
        model = model.bfloat16()
    prompt, count, end = _prompt(preset)
    ids_BT = torch.tensor([prompt])
    mask_BT = torch.ones_like(ids_BT)

    def call() -> list[list[int]]:
        with torch.inference_mode():
            written_BT = model.generate(
                input_ids=ids_BT,
                attention_mask=mask_BT,
                do_sample=False,
                min_new_tokens=count,
                max_new_tokens=count,
                eos_token_id=end,
                pad_token_id=end,
            )
        return [written_BT[0, len(prompt) :].tolist()]

    return call


def _systems(preset: str, options: Options) -> list[System]:
    many = options.threads
    few = [1, many] if many > 1 else [1]
    ours = [("int8", n) for n in few] + [(precision, many) for precision in PRECISIONS if precision != "int8"]
    theirs = [("int8", n) for n in few] + [("float32", many)]
    return [
        *(
            System(
                f"glassformer {precision} 1x{n}",
                partial(native, precision=precision, threads=n),
                threads=n,
                packages=("glassformer",),
            )
            for precision, n in ours
        ),
        *(
            System(
                f"ctranslate2 {precision} 1x{n}",
                partial(ctranslate2, precision=precision, threads=n),
                threads=n,
                peer=True,
                packages=("ctranslate2",),
            )
            for precision, n in theirs
        ),
        *(
            System(
                f"llama.cpp {quantisation} 1x{n}",
                partial(llama_cpp, quantisation=quantisation, threads=n),
                threads=n,
                peer=True,
                packages=("llama-cpp-python",),
                slow=quantisation != "q8_0",
            )
            for quantisation in QUANTISATIONS
            for n in few
        ),
        *(
            System(
                f"hf-gpt2 {precision}",
                partial(hugging_face, precision=precision, threads=many),
                threads=many,
                peer=True,
                packages=("transformers", "torch"),
                slow=precision == "bf16",
            )
            for precision in ("fp32", "bf16")
        ),
    ]


def _check(preset: str, options: Options, outcomes: Mapping[str, Any]) -> Mapping[str, Mapping[str, str]]:
    count = PRESETS[preset][1]
    for name, (ids,) in outcomes.items():
        if len(ids) != count:
            raise Failed(f"{name} wrote {len(ids)} tokens, not {count}")
    return check_tokens(outcomes, equal=True)


QUESTION = Question(
    tuple(PRESETS), ("gpt2",), _systems, lambda preset, options: {"tokens": PRESETS[preset][1]}, _make, _check
)
