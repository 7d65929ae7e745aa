"""Reading a Hugging Face ``config.json`` so that no key that changes outputs is passed over."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from glassformer.config import ModelConfig
from glassformer.errors import UserError

# fmt: off
HARMLESS = frozenset(
    [
        "_attn_implementation", "_attn_implementation_autoset", "_commit_hash", "_name_or_path", "_num_labels",
        "add_pooling_layer", "architectures", "attn_implementation", "bad_words_ids", "begin_suppress_tokens",
        "bos_token_id", "chunk_size_feed_forward", "cross_attention_hidden_size", "decoder_start_token_id",
        "directionality", "diversity_penalty", "do_sample", "dtype", "early_stopping",
        "encoder_no_repeat_ngram_size", "encoder_stride", "eos_token_id", "exponential_decay_length_penalty",
        "finetuning_task", "forced_bos_token_id", "forced_eos_token_id", "gradient_checkpointing",
        "initializer_factor", "initializer_range", "keys_to_ignore_at_inference", "language", "length_penalty",
        "max_length", "min_length", "model_type", "no_repeat_ngram_size", "num_beam_groups", "num_beams",
        "num_return_sequences", "output_attentions", "output_hidden_states", "output_past", "output_scores",
        "pad_token_id", "pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers",
        "pooler_size_per_head", "pooler_type", "prefix", "pretraining_tp", "remove_invalid_values",
        "repetition_penalty", "return_dict", "return_dict_in_generate", "sep_token_id", "suppress_tokens",
        "task_specific_params", "temperature", "tf_legacy_loss", "tokenizer_class", "top_k", "top_p",
        "torch_dtype", "torchscript", "transformers_version", "typical_p", "unk_token_id", "use_bfloat16",
        "use_cache",
    ]
)
# fmt: on
"""Keys that say how to train, store or search, or what another key says again: no logit depends on them."""

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu-tanh",
    "gelu_pytorch_tanh": "gelu-tanh",
    "quick_gelu": "quick-gelu",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}
"""Their names of activations → ours; of several names for one, the first is written."""

_MISSING = object()


class Keys:
    """The content of a ``config.json``: each key is taken, known to be harmless, or an error in ``done``."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        self._data = data
        self._read: set[str] = set()

    def take(self, *names: str, default: Any = _MISSING) -> Any:
        """The value of the first of these keys that is there and not null, else the default.

        Raises:
            UserError: There is none, and no default.
        """
        self._read.update(names)
        found = (self._data[name] for name in names if self._data.get(name) is not None)
        value = next(found, default)
        if value is _MISSING:
            raise UserError(f"config.json has no {names[0]!r}; it is needed")
        return value

    def only(self, name: str, *accepted: Any) -> None:
        """Takes a key of which nothing but these values can be represented; absent and null ones are the first."""
        value = self.take(name, default=accepted[0])
        if value not in accepted:
            raise UserError(
                f"config.json: {name} {value!r} cannot be represented, only {' or '.join(map(repr, accepted))}"
            )

    def activation(self, *names: str, default: str = "gelu") -> Any:
        """Takes the name of an activation, and gives ours."""
        value = self.take(*names, default=default)
        if not isinstance(value, str) or value not in ACTIVATIONS:
            raise UserError(f"config.json: {names[0]} {value!r} cannot be represented, only {', '.join(ACTIVATIONS)}")
        return ACTIVATIONS[value]

    def labels(self) -> tuple[str, ...]:
        """Takes the names of a classifier's labels, which are two where nothing is said."""
        named, count = self.take("id2label", default=None), self.take("num_labels", default=2)
        self.take("label2id", default=None)
        if named is None:
            return tuple(f"LABEL_{index}" for index in range(count))
        return tuple(str(named[key]) for key in sorted(named, key=int))

    def architecture(self, known: Mapping[str, Any]) -> Any:
        """What ``architectures`` names, looked up; the first of ``known`` where it names none."""
        (name, *_) = self._data.get("architectures") or list(known)
        if name not in known:
            raise UserError(f"config.json: architecture {name} cannot be represented, only {', '.join(known)}")
        return known[name]

    def done(self) -> None:
        """Refuses by name what was not taken.

        Raises:
            UserError: A key that might change outputs is left.
        """
        left = [name for name, value in self._data.items() if name not in self._read | HARMLESS and value is not None]
        if left:
            raise UserError(
                f"config.json: {', '.join(left)} might change what the model computes, and cannot be represented"
            )


def hf_architectures(known: Mapping[str, Any], config: ModelConfig) -> list[str]:
    """The first of their classes that has a head where our model has one, as ``architectures`` lists it."""
    return [next(name for name, head in known.items() if (head is None) == (config.head is None))]


def hf_activation(ours: str) -> str:
    """Their name of an activation of ours."""
    return next(theirs for theirs, name in ACTIVATIONS.items() if name == ours)


def hf_labels(labels: tuple[str, ...]) -> dict[str, Any]:
    """The keys that name a classifier's labels."""
    return {
        "id2label": {str(index): label for index, label in enumerate(labels)},
        "label2id": {label: index for index, label in enumerate(labels)},
    }
