"""Hugging Face directories: ``config.json``, safetensors in one file or in shards, and a tokenizer of any kind.

What a family's keys and weights mean is said once, in its file (``from_hf``, ``to_hf``, ``rules``), for both ways.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from glassformer.config import ModelConfig, PoolerConfig, explain
from glassformer.errors import UserError
from glassformer.families import FAMILIES, family_of
from glassformer.families.family import Family
from glassformer.families.same import refuse_difference
from glassformer.header import Framing
from glassformer.models.build import build_model
from glassformer.schema import MOST_BLOCKS
from glassformer.store import Loaded, atomic_directory, float_model, save_tensors
from glassformer.text.tokenizer import Tokenizer
from glassformer.weights import export_weights, import_weights

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
LEGACY = {"gamma": "weight", "beta": "bias"}
"""What TensorFlow called the two numbers of a norm; Google's BERTs still do."""
PREPROCESSOR, PIXELS = "preprocessor_config.json", ("image_mean", "image_std")
PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")
WRAPPERS = ("_orig_mod.", "module.")
"""What ``torch.compile`` and data parallelism put before every name."""


def recognises(path: Path) -> bool:
    """Whether the directory holds a ``config.json`` that names a ``model_type``."""
    try:
        return "model_type" in json.loads((path / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError):
        return False


def load(path: Path) -> Loaded:
    """Loads a directory; float32 weights stay memory-mapped.

    Raises:
        UserError: A file is missing or damaged, the type of model is unknown, its configuration says what we cannot
            represent, a weight is missing or left over, or the vocabulary does not fit the embedding.
    """
    data, family = read_config(path)
    config = model_config(path)
    weights = import_weights(_rules(family, config), _named(read_tensors(path), family.prefix), _expected(config))
    tokenizer = read_tokenizer(path)
    if tokenizer is not None:
        check_vocabulary(path, tokenizer, config)
    return Loaded(path, float_model(config, weights), tokenizer, None, read_framing(path, data, tokenizer, config.kind))


def model_config(path: Path) -> ModelConfig:
    """The configuration of a directory's model.

    Raises:
        UserError: As `load`.
    """
    data, family = read_config(path)
    try:
        return _from_hf(family, data)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def _from_hf(family: Family, data: Mapping[str, Any]) -> ModelConfig:
    assert family.from_hf is not None
    for key, value in data.items():
        if key.endswith(("layer", "layers")) and isinstance(value, int) and value > MOST_BLOCKS:
            raise UserError(f"{CONFIG}: {key} {value}, but a stack holds at most {MOST_BLOCKS} blocks")
    if not isinstance(count := data.get("num_hidden_layers", 1), int | None) or (count is not None and count < 1):
        raise UserError(f"{CONFIG}: num_hidden_layers {count!r} is no number of layers; it is at least 1")
    try:
        return family.from_hf(data)
    except ValidationError as error:
        raise UserError(explain(ModelConfig, error, CONFIG)) from None


def save(
    directory: str | os.PathLike[str], model: Any, tokenizer: Tokenizer | None = None, framing: Framing | None = None
) -> None:
    """Writes a model as a Hugging Face directory, which ``transformers`` loads.

    Args:
        directory: Where; it must not exist yet.
        model: The torch module.
        tokenizer: Saved beside it.
        framing: Names the ids of ``<s>`` and ``</s>``, and goes into ``generation_config.json``.

    Raises:
        UserError: No family can write such a model, or the directory exists.
    """
    directory = Path(directory)
    if directory.exists():
        raise UserError(f"{directory}: exists already; name a new directory")
    family, data = exported_config(model.config)
    ours = {name: tensor.detach().to("cpu", torch.float32) for name, tensor in model.state_dict().items()}
    theirs = export_weights(_rules(family, model.config), ours)
    if family.prefix and isinstance(model.config.head, PoolerConfig | None):
        theirs = {name.removeprefix(family.prefix): tensor for name, tensor in theirs.items()}
    ids = _special_ids(tokenizer, framing)
    # A family that says it needs it so: RoBERTa counts positions on from the id of padding.
    kept = {"pad_token_id"} & data.keys()
    data |= {
        key: value for key, value in ids.items() if key not in data or (isinstance(value, int) and key not in kept)
    }
    with atomic_directory(directory) as scratch:
        _write_json(scratch / CONFIG, {**data, "dtype": "float32"})
        save_tensors(theirs, scratch / WEIGHTS, {"format": "pt"})
        if pixels := {key: value for key, value in data.items() if key in PIXELS}:
            _write_json(scratch / PREPROCESSOR, {"do_normalize": True, **pixels})
        if ids:
            _write_json(scratch / "generation_config.json", ids)
        if tokenizer is not None:
            tokenizer.save(scratch)
            named = {key: tokenizer.id_to_token(value) for key, value in _named_specials(tokenizer).items()}
            _write_json(scratch / "tokenizer_config.json", {**named, **_around_keys(framing, model.config.kind)})


def exported_config(config: ModelConfig) -> tuple[Family, dict[str, Any]]:
    """The family that can write such a model, and the content of its ``config.json``.

    Raises:
        UserError: None can; the message holds what each of its kind said.
    """
    refused = []
    for family in FAMILIES:
        if family.to_hf is None or family.from_hf is None or family.kind != config.kind:
            continue
        try:
            data = {"model_type": family.hf_types[0], **family.to_hf(config)}
            refuse_difference(_comparable(config), _comparable(_from_hf(family, data)), family.hf_types[0])
            return family, data
        except UserError as error:
            refused.append(f"{family.name}: {error}")
    reasons = "; ".join(refused) or f"no family of kind {config.kind} has one"
    raise UserError(f"this model has no Hugging Face form ({reasons})")


def _comparable(config: ModelConfig) -> ModelConfig:
    """Without what another order of rows makes up for (a rotary layout), and what limits nothing (its length)."""

    def plain(value: Any) -> Any:
        if isinstance(value, Mapping):
            noted = {"layout": "halves", "max_len": None} if "fraction" in value else {}
            return {key: noted.get(key, plain(each)) for key, each in value.items()}
        return [plain(each) for each in value] if isinstance(value, list) else value

    return ModelConfig.from_dict(plain(config.to_dict()))


def read_config(path: Path) -> tuple[dict[str, Any], Family]:
    """The content of ``config.json``, and the family that it belongs to.

    Raises:
        UserError: It is missing, damaged, or of an unknown type.
    """
    data = _read_json(path / CONFIG)
    data = {**_pixels(path, data.get("num_channels", 3)), **data}
    name = data.get("model_type")
    family = family_of(str(name))
    if family is None or family.from_hf is None:
        known = ", ".join(kind for family in FAMILIES if family.from_hf for kind in family.hf_types)
        raise UserError(f"{path / CONFIG}: model_type {name!r} is unknown; known are {known}")
    return data, family


def _pixels(path: Path, channels: int) -> dict[str, Any]:
    """How the pixels of image files are scaled, which stands in a file of its own."""
    told = _read_json(path / PREPROCESSOR, {})
    if told.get("do_normalize") is False:
        return {"image_mean": [0.0] * channels, "image_std": [1.0] * channels}
    return {key: told[key] for key in PIXELS if key in told}


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Every tensor of a directory's safetensors, memory-mapped.

    Raises:
        UserError: There are none, only pickles, or a file is missing or damaged.
    """
    files = [path / WEIGHTS]
    if not files[0].is_file():
        if (path / INDEX).is_file():
            index = _read_json(path / INDEX).get("weight_map")
            if not isinstance(index, dict):
                raise UserError(f"{path / INDEX}: no index of shards: it has no weight_map")
            files = [path / name for name in sorted(set(index.values()))]
        elif pickles := [name for name in PICKLES if (path / name).is_file()]:
            raise UserError(
                f"{path / pickles[0]}: a pickle, which can run anything when it is read; "
                "save the model as model.safetensors (save_pretrained does)"
            )
    tensors: dict[str, Tensor] = {}
    for file in files:
        try:
            tensors |= load_file(file)
        except FileNotFoundError:
            raise UserError(f"{path}: has no {file.name}, which holds the weights") from None
        except (OSError, SafetensorError) as error:
            raise UserError(f"{file}: damaged or not a safetensors file ({error}); copy it again") from None
    return tensors


def read_tokenizer(path: Path) -> Tokenizer | None:
    """The tokenizer of a directory, by the names of its files; None where there is none."""
    from glassformer.text import foreign

    if not any((path / name).is_file() for name in foreign.FILES):
        return None
    if (path / "vocab.json").is_file() and not (path / "merges.txt").is_file() and not _has_json_tokenizer(path):
        return None
    return Tokenizer.load(path)


def _has_json_tokenizer(path: Path) -> bool:
    return any((path / name).is_file() for name in ("tokenizer.json", "source.spm", "tokenizer.model", "spiece.model"))


def check_vocabulary(where: Path, tokenizer: Tokenizer, config: ModelConfig) -> None:
    """Refuses a tokenizer with more pieces than the embedding has rows."""
    rows = getattr(config.embed, "vocab_size", None)
    if rows is not None and tokenizer.vocab_size > rows:
        raise UserError(
            f"{where}: its tokenizer has {tokenizer.vocab_size} pieces, but the embedding only {rows} rows; "
            "it belongs to another model"
        )


def read_framing(path: Path, data: Mapping[str, Any], tokenizer: Tokenizer | None, kind: str) -> Framing:
    """What stands around texts, of what the tokenizer's files, the generation's and the model's config say."""
    told = _read_json(path / "tokenizer_config.json", {})
    generation = {**data, **_read_json(path / "generation_config.json", {})}
    before, after = ((), ()) if tokenizer is None else _around(tokenizer, told, kind)
    ends = generation.get("eos_token_id")
    if ends is None and tokenizer is not None:
        ends = tokenizer.eos_id
    template = told.get("chat_template")
    if isinstance(template, list):  # several, each with a name
        template = next((each["template"] for each in template if each.get("name") == "default"), None)
    if (path / "chat_template.jinja").is_file():
        template = (path / "chat_template.jinja").read_text(encoding="utf-8")
    start = generation.get("decoder_start_token_id")
    listed = () if ends is None else tuple(ends) if isinstance(ends, list) else (ends,)
    return Framing(tuple(before), tuple(after), start, listed, template, **_targets(generation, kind, listed))


def _targets(generation: Mapping[str, Any], kind: str, ends: Sequence[int]) -> dict[str, Any]:
    """What a target never holds, and what it is made to begin with, where a model writes other text than it reads."""
    if kind != "encoder-decoder":
        return {}
    # The libraries' own loops never go on from padding, whatever a file says or leaves out.
    pad, forced = generation.get("pad_token_id"), generation.get("forced_bos_token_id")
    words = [words[0] for words in generation.get("bad_words_ids") or () if len(words) == 1]
    banned = {*words, *([] if pad is None else [pad])} - {*ends}
    return {"banned": tuple(sorted(banned)), "forced": () if forced is None else (forced,)}


def _around(tokenizer: Tokenizer, told: Mapping[str, Any], kind: str) -> tuple[list[int], list[int]]:
    """The ids before and after a text.

    A tokenizer.json says it itself. The other kinds of files leave it to convention: WordPiece puts ``[CLS]`` and
    ``[SEP]`` around a text, SentencePiece ``<s>`` before a prompt and ``</s>`` behind a source, byte-level BPE nothing,
    unless it knows ``<s>``.
    """
    bos, eos = ([] if index is None else [index] for index in (tokenizer.bos_id, tokenizer.eos_id))
    post = getattr(tokenizer.backend, "post_processor", None)
    if post is not None:
        plain, framed = (tokenizer.backend.encode("a", add_special_tokens=special).ids for special in (False, True))
        starts = (at for at in range(len(framed)) if framed[at : at + len(plain)] == plain)
        at = next(starts, 0)
        return framed[:at], framed[at + len(plain) :]
    byte_level = tokenizer.kind == "bpe" and hasattr(tokenizer.backend, "pre_tokenizer")
    begins, ends = kind == "decoder", kind != "decoder"
    if byte_level:
        begins = tokenizer.token_to_id("<s>") is not None
        ends = begins and ends
    elif tokenizer.kind == "wordpiece":
        begins = ends = True
    begins, ends = told.get("add_bos_token", begins), told.get("add_eos_token", ends)
    return bos if begins else [], eos if ends else []


def _around_keys(framing: Framing | None, kind: str) -> dict[str, Any]:
    """The keys of ``tokenizer_config.json`` that say what stands around a text."""
    if framing is None:
        return {}
    around = {"add_bos_token": bool(framing.before), "add_eos_token": bool(framing.after) and kind != "decoder"}
    return around | ({"chat_template": framing.chat_template} if framing.chat_template else {})


def _rules(family: Family, config: ModelConfig) -> Any:
    if family.rules is None:
        raise UserError(f"{family.name}: its weights cannot be translated")
    return family.rules(config)


def _expected(config: ModelConfig) -> dict[str, Tensor]:
    return dict(build_model(config, "meta", initialise=False).state_dict())


def _named(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Tensors by the names of a model with a head: without wrappers, with the family's prefix where all lack it."""
    named = {_unwrapped(name): tensor for name, tensor in tensors.items()}
    if prefix and not any(name.startswith(prefix) for name in named):
        named = {prefix + name: tensor for name, tensor in named.items()}
    return named


def _unwrapped(name: str) -> str:
    while wrapper := next((each for each in WRAPPERS if name.startswith(each)), None):
        name = name.removeprefix(wrapper)
    stem, _, kind = name.rpartition(".")
    return f"{stem}.{LEGACY[kind]}" if kind in LEGACY and stem.endswith("LayerNorm") else name


def _named_specials(tokenizer: Tokenizer) -> dict[str, int]:
    found = {"bos_token": tokenizer.bos_id, "eos_token": tokenizer.eos_id}
    found |= {"pad_token": tokenizer.pad_id, "unk_token": tokenizer.unk_id}
    return {name: index for name, index in found.items() if index is not None}


def _special_ids(tokenizer: Tokenizer | None, framing: Framing | None) -> dict[str, Any]:
    ids: dict[str, Any] = {}
    if tokenizer is not None:
        ids = {f"{name}_id": index for name, index in _named_specials(tokenizer).items() if name != "unk_token"}
    if framing is not None and framing.ends:
        ids["eos_token_id"] = framing.ends[0] if len(framing.ends) == 1 else list(framing.ends)
    if framing is not None and framing.start is not None:
        ids["decoder_start_token_id"] = framing.start
    if framing is not None and framing.banned:  # padding is among them; where a decoder starts with it, it is that
        ids.setdefault("pad_token_id", framing.start if framing.start in framing.banned else framing.banned[0])
    if framing is not None and framing.forced:
        ids["forced_bos_token_id"] = framing.forced[0]
    return ids


def _read_json(file: Path, default: dict[str, Any] | None = None) -> dict[str, Any]:
    if default is not None and not file.is_file():
        return default
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{file.parent}: has no {file.name}") from None
    except ValueError as error:
        raise UserError(f"{file}: not valid JSON ({error})") from None
    if not isinstance(data, dict):
        raise UserError(f"{file}: expected an object with keys, got {type(data).__name__}")
    return data


def _write_json(file: Path, data: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
