"""Whether another form of a configuration says the same model."""

from __future__ import annotations

import math
from typing import Any

from glassformer.config import MambaConfig, ModelConfig
from glassformer.errors import UserError

# How a model was drawn and trained changes nothing that it says.
_TRAINING = ("dropout", "init", "dt_min", "dt_max")


def refuse_difference(wanted: ModelConfig, got: ModelConfig, form: str) -> None:
    """Refuses a model that another form would turn into another one.

    Args:
        wanted: The model's configuration.
        got: What is read back out of the other form.
        form: Its name.

    Raises:
        UserError: With the first setting that differs.
    """
    ours, theirs = (_spelled_out(config.to_dict(), config.d_model) for config in (wanted, got))
    if difference := _difference(ours, theirs, ""):
        raise UserError(f"{form} cannot represent this model: {difference}")


def _spelled_out(value: Any, d_model: int) -> Any:
    """The data with what mixers leave to their defaults."""
    if isinstance(value, list):
        return [_spelled_out(each, d_model) for each in value]
    if not isinstance(value, dict):
        return value
    value = {key: _spelled_out(each, d_model) for key, each in value.items()}
    if value.get("type") == "attention":
        size = value["d_head"] or d_model // value["n_heads"]
        value |= {"d_head": size, "scale": value["scale"] or size**-0.5}
        value["n_kv_heads"] = value["n_kv_heads"] or value["n_heads"]
        value["out_bias"] = value["bias"] if value["out_bias"] is None else value["out_bias"]
    if value.get("type") in ("sliding", "blocks"):
        value["d_head"] = value["d_head"] or d_model // value["n_heads"]
        value["out_bias"] = value["bias"] if value["out_bias"] is None else value["out_bias"]
    if value.get("type") == "sliding":
        value["global_tokens"] = value["global_tokens"] or ("none" if value["causal"] else "first")
    if value.get("type") == "mamba":
        config = MambaConfig(**value)
        value |= {"d_inner": config.inner(d_model), "dt_rank": config.rank(d_model)}
    if value.get("type") == "mamba2":
        value["norm_groups"] = value["norm_groups"] or value["n_groups"]
    return value


def _difference(wanted: Any, got: Any, path: str) -> str:
    if isinstance(wanted, dict) and isinstance(got, dict):
        keys = [key for key in {**wanted, **got} if key not in _TRAINING]
        pairs = [(wanted.get(key), got.get(key), f"{path}.{key}".strip(".")) for key in keys]
    elif isinstance(wanted, list) and isinstance(got, list) and len(wanted) == len(got):
        pairs = [(a, b, f"{path}.{index}") for index, (a, b) in enumerate(zip(wanted, got, strict=True))]
    else:
        close = isinstance(wanted, float) and isinstance(got, float) and math.isclose(wanted, got, rel_tol=1e-6)
        return "" if close or wanted == got else f"its {path} is {_brief(wanted)}, where the format has {_brief(got)}"
    return next(filter(None, (_difference(*pair) for pair in pairs)), "")


def _brief(value: Any) -> str:
    if isinstance(value, dict):
        return str(value.get("type", "something"))
    return "none" if value is None else f"{len(value)} of them" if isinstance(value, list) else str(value)
