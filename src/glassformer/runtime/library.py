"""The native library: found, loaded, and described to ctypes."""

from __future__ import annotations

import ctypes
import sys
import zlib
from array import array
from functools import cache
from pathlib import Path
from typing import Any

ABI_VERSION = 6
FILE = Path(__file__).parent / "native" / ("glassformer_native" + (".dll" if sys.platform == "win32" else ".so"))

Pointer = ctypes.c_void_p
Int = ctypes.c_int32
Ints = ctypes.POINTER(ctypes.c_int32)
Floats = ctypes.POINTER(ctypes.c_float)


class EngineUnavailable(Exception):
    """This engine cannot run here, or cannot run this model; the message says why."""


def _struct(name: str, **fields: type) -> type[ctypes.Structure]:
    return type(name, (ctypes.Structure,), {"_fields_": list(fields.items())})


# The mirror of native/abi.h.
Linear = _struct(
    "Linear",
    **dict.fromkeys(("weight", "scale", "bias", "row_sums", "factors", "columns"), Pointer),
    **dict.fromkeys(("n", "k", "type", "extras"), Int),
)
Norm = _struct("Norm", gain=Pointer, bias=Pointer, eps=ctypes.c_float, rms=Int)
Layer = _struct(
    "Layer",
    **dict.fromkeys(("mixer_norm", "cross_norm", "ffn_norm"), Norm),
    **dict.fromkeys(("qkv", "out", "cross_q", "cross_kv", "cross_out", "up", "down"), Linear),
    **dict.fromkeys(("heads", "kv_heads", "head_size", "cross_heads", "cross_head_size"), Int),
    **dict.fromkeys(("window", "activation", "gated", "pre", "parallel"), Int),
)
Stack = _struct(
    "Stack",
    layers=ctypes.POINTER(Layer),
    positions=Pointer,
    frequencies=Pointer,
    input_norm=Norm,
    final_norm=Norm,
    sharpness=ctypes.c_float,
    **dict.fromkeys(("turned", "n_layers", "max_len"), Int),
)
Model = _struct(
    "Model",
    encoder=Stack,
    decoder=Stack,
    source_embed=Linear,
    target_embed=Linear,
    output=Linear,
    source_factor=ctypes.c_float,
    target_factor=ctypes.c_float,
    **dict.fromkeys(("d", "width", "source_vocab", "target_vocab"), Int),
)
SearchRequest = _struct(
    "SearchRequest",
    **dict.fromkeys(("sources", "source_lengths", "prefixes", "prefix_lengths", "limits", "banned"), Ints),
    **dict.fromkeys(("phrases", "phrase_lengths", "shortlists", "shortlist_lengths"), Ints),
    **dict.fromkeys(
        (
            "sentences",
            "n_banned",
            "n_phrases",
            "no_repeat_ngram",
            "beam_size",
            "n_best",
            "bos",
            "eos",
            "threads",
            "workers",
        ),
        Int,
    ),
    length_penalty=ctypes.c_double,
)
AttentionRequest = _struct(
    "AttentionRequest",
    **dict.fromkeys(("sources", "source_lengths", "targets", "target_lengths", "layers", "heads"), Ints),
    **dict.fromkeys(("sentences", "wanted", "threads"), Int),
)
SearchResult = _struct(
    "SearchResult", **dict.fromkeys(("counts", "lengths", "finished", "tokens"), Ints), logprobs=Floats
)

_ON_MODEL: list[Any] = [ctypes.POINTER(Model), ctypes.c_char_p]
FUNCTIONS: dict[str, tuple[list[Any], Any]] = {
    "gf_abi_version": ([], Int),
    "gf_error": ([], ctypes.c_char_p),
    "gf_kernel_sets": ([], ctypes.c_char_p),
    "gf_search": ([*_ON_MODEL, ctypes.POINTER(SearchRequest), ctypes.POINTER(SearchResult)], Int),
    "gf_free_result": ([ctypes.POINTER(SearchResult)], None),
    "gf_start": ([*_ON_MODEL, Ints, Ints, Int, Int, ctypes.POINTER(Pointer)], Int),
    "gf_step": ([Pointer, Ints, Ints, Int, Pointer], Int),
    "gf_encode": ([*_ON_MODEL, Ints, Ints, Int, Int, Pointer], Int),
    "gf_attention": ([*_ON_MODEL, ctypes.POINTER(AttentionRequest), Pointer], Int),
    "gf_select": ([Pointer, Ints, Int], Int),
    "gf_truncate": ([Pointer, Int], Int),
    "gf_free": ([Pointer], None),
    "gf_kernels": ([ctypes.c_char_p], Pointer),
}


@cache
def library() -> ctypes.CDLL:
    """The loaded library.

    Raises:
        EngineUnavailable: it was not built, or not for this machine or this version of the package.
    """
    file = FILE
    if not file.exists():
        raise EngineUnavailable("it was not built when the package was installed, for lack of a C++17 compiler")
    _check_whole(file)
    try:
        loaded = ctypes.CDLL(str(file))
        version = loaded.gf_abi_version()
    except (OSError, AttributeError) as error:
        raise EngineUnavailable(f"{file.name} cannot be loaded ({error}); install the package again") from None
    if version != ABI_VERSION:
        raise EngineUnavailable(
            f"{file.name} is of interface version {version}, and this package of {ABI_VERSION}; install it again"
        )
    for name, (arguments, result) in FUNCTIONS.items():
        function = getattr(loaded, name)
        function.argtypes, function.restype = arguments, result
    return loaded


def _check_whole(file: Path) -> None:
    """Refuses a library that is not what was built: mapping half a file ends the process at its first missing page."""
    try:
        content, wanted = file.read_bytes(), file.with_name(f"{file.name}.sum").read_text()
    except OSError as error:
        raise EngineUnavailable(f"{file.name} cannot be read ({error}); install the package again") from None
    # As build.checksum says it, which is not imported at each start, for all that a build needs.
    if wanted != f"{len(content)} {zlib.crc32(content):08x}":
        raise EngineUnavailable(f"{file.name} is not as it was built, truncated perhaps; install the package again")


def kernel_sets() -> list[str]:
    """The instruction sets that were built and that this processor has, best first."""
    return library().gf_kernel_sets().decode().split()


def ints(values: Any) -> Any:
    """Integers as a C array; never of no length, since an empty one has no address."""
    held = array("i", values) or array("i", [0])
    return (ctypes.c_int32 * len(held)).from_buffer(held)
