"""llama.cpp beside the others: a GPT-2 written as GGUF, and written with, through llama-cpp-python's plain C calls."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.foreign import made

QUANTISATIONS = ("q8_0", "q4_0")
_PARTS = {
    "mixer_residual.norm": "attn_norm",
    "ffn_residual.norm": "ffn_norm",
    "mixer.out": "attn_output",
    "ffn.up": "ffn_up",
    "ffn.down": "ffn_down",
}
"""Our names in a layer → GGUF's."""


def write_gguf(directory: Path, end: int) -> None:
    """Writes the GPT-2 in each of `QUANTISATIONS`: matrices quantised, the rest in float32, the output its own copy.

    Args:
        directory: The model in Hugging Face's form.
        end: The id that ends a text.
    """
    gguf = importlib.import_module("gguf")
    from glassformer.interop import hf

    loaded = None
    for quantisation in QUANTISATIONS:
        path = made(directory, f"{quantisation}.gguf")
        if path.exists():
            continue
        loaded = loaded or hf.load(directory).model
        weights = {name: tensor.numpy() for name, tensor in loaded.state_dict().items()}
        scratch = path.with_suffix(".partial")
        writer = gguf.GGUFWriter(str(scratch), "gpt2")
        _describe(writer, gguf, loaded.config, quantisation, end)
        _write(writer, gguf.GGMLQuantizationType[quantisation.upper()], gguf, weights, loaded.config)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        scratch.replace(path)


def _describe(writer: Any, gguf: Any, config: Any, quantisation: str, end: int) -> None:
    block = config.decoder.blocks[0]
    writer.add_context_length(config.decoder.position.max_len)
    writer.add_embedding_length(config.d_model)
    writer.add_feed_forward_length(block.ffn.d_ff)
    writer.add_block_count(len(config.decoder.blocks))
    writer.add_head_count(block.mixer.n_heads)
    writer.add_layer_norm_eps(block.norm.eps)
    writer.add_file_type(gguf.LlamaFileType[f"MOSTLY_{quantisation.upper()}"])
    # It loads no model without a tokenizer; ids go in and come out, so pieces are the ids in digits.
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([str(index) for index in range(config.target_vocab_size)])
    writer.add_token_types([1] * config.target_vocab_size)
    writer.add_token_merges(["1 2"])
    writer.add_bos_token_id(end)
    writer.add_eos_token_id(end)


def _write(writer: Any, kind: Any, gguf: Any, weights: dict[str, np.ndarray], config: Any) -> None:
    def add(name: str, values: np.ndarray, quantise: bool) -> None:
        values = np.ascontiguousarray(values, np.float32)
        if quantise:
            writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, values)

    add("token_embd.weight", weights["embed.weight"], True)
    add("position_embd.weight", weights["decoder.position.weight"], False)
    for index in range(len(config.decoder.blocks)):
        ours, theirs = f"decoder.layers.{index}.", f"blk.{index}."
        for suffix in ("weight", "bias"):
            joint = np.concatenate([weights[f"{ours}mixer.{part}.{suffix}"] for part in ("query", "key", "value")])
            add(f"{theirs}attn_qkv.{suffix}", joint, suffix == "weight")
            for mine, its in _PARTS.items():
                add(
                    f"{theirs}{its}.{suffix}",
                    weights[f"{ours}{mine}.{suffix}"],
                    suffix == "weight" and "norm" not in its,
                )
    for suffix in ("weight", "bias"):
        add(f"output_norm.{suffix}", weights[f"decoder.final_norm.{suffix}"], False)
    add("output.weight", weights["embed.weight"], True)


def writer_of(
    directory: Path, quantisation: str, threads: int, prompt: Sequence[int], count: int, end: int
) -> Callable[[], list[list[int]]]:
    """Greedy decoding without the id that ends a text; the choice itself is numpy's, a hundredth of the time."""
    llama = importlib.import_module("llama_cpp")
    vocab_size = end + 1
    llama.llama_backend_init()
    silent = llama.llama_log_callback(lambda level, text, data: None)
    llama.llama_log_set(silent, None)
    model = llama.llama_model_load_from_file(
        str(made(directory, f"{quantisation}.gguf")).encode(), llama.llama_model_default_params()
    )
    settings = llama.llama_context_default_params()
    settings.n_ctx = len(prompt) + count
    settings.n_threads = settings.n_threads_batch = threads
    context = llama.llama_init_from_model(model, settings)

    def call() -> list[list[int]]:
        _ = silent  # the library keeps the pointer only
        llama.llama_memory_clear(llama.llama_get_memory(context), True)
        read, written = list(prompt), []
        for _step in range(count):
            tokens = (llama.llama_token * len(read))(*read)  # the batch keeps a pointer to it only
            if llama.llama_decode(context, llama.llama_batch_get_one(tokens, len(read))):
                raise RuntimeError("llama.cpp could not decode")
            logits_V = np.ctypeslib.as_array(llama.llama_get_logits_ith(context, -1), shape=(vocab_size,))
            read = [int(logits_V[:end].argmax())]
            written += read
        return [written]

    return call
