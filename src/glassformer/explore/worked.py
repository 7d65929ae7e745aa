"""The small worked numbers of the teaching material, computed anew by this package's own layers.

Inputs and printed results stand here as the material prints them, to two or three decimals; ``computed`` is what the
layers that models are made of say today.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import torch
from torch import Tensor

from glassformer.config import AttentionConfig, EmbedConfig, HeadConfig, LayerNormConfig, SinusoidalConfig
from glassformer.data.collate import collate, pad
from glassformer.families import build, configure
from glassformer.nn import mask as masks
from glassformer.nn.attend import attend
from glassformer.nn.attention import CrossAttention
from glassformer.nn.embed import OutputHead, TokenEmbedding
from glassformer.nn.mixer import Context
from glassformer.nn.norm import build_norm
from glassformer.nn.position import PositionTable
from glassformer.trace.recorder import record

LABELS, TOLERANCE = ["我", "爱", "自然", "语言", "处理"], 0.006


@cache
def worked() -> list[dict[str, Any]]:
    """Every example, as `Worked`: what goes in, what the material prints, and what the layers compute."""
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return [
            _told("sinusoidal_positions", *_positions(), TOLERANCE),
            _told("softmax_self_attention", *_self_attention(), TOLERANCE),
            _told("causal_mask", *_causal_mask(), TOLERANCE),
            _told("single_token", *_single_token(), 0.0),
            _told("cross_attention_scores", *_cross_scores(), 0.0006),
            _told("cross_attention_weights", *_cross_weights(), 0.0006),
            *(_told(f"layer_norm {name}", *_layer_norm(name), TOLERANCE) for name in _ROWS),
            _told("output_layer", *_output_layer(), 0.00006),
            _told("autoregression", *_autoregression(), 0.0),
            _told("shift_right", *_shift_right(), 0.0),
            _told("batch_shapes", *_batch_shapes(), 0.0),
            _told("attention_shapes", *_attention_shapes(), 0.0),
            _told("parameter_counts", *_parameter_counts(), 0.0),
            _told("widths", *_widths(), 0.0),
        ]


_Example = tuple[dict[str, Any], Any, Any]


def _told(name: str, inputs: dict[str, Any], expected: Any, computed: Any, tolerance: float) -> dict[str, Any]:
    told = computed.tolist() if isinstance(computed, Tensor) else computed
    return {"name": name, "inputs": inputs, "expected": expected, "computed": told, "tolerance": tolerance}


def _look(scores: list[float], **options: Any) -> Tensor:
    """The weights of attention whose scores are the given ones: heads of size 1, the query 1, the scores as keys."""
    seen: list[Tensor] = []

    def see(value: Tensor) -> Tensor:
        seen.append(value[0, 0])
        return value

    keys = torch.tensor(scores).view(1, 1, -1, 1)
    queries = torch.ones(1, 1, len(scores) if options.get("causal") else 1, 1)
    with record(torch.nn.Identity()):  # while somebody looks, attention computes its weights
        attend(queries, keys, keys, see_pattern=see, **options)
    return seen[0]


def _positions() -> _Example:
    positions = [1, 2, 3, 4, 5]
    expected = [
        [0.84, 0.54, 0.01, 1.00],
        [0.91, -0.42, 0.02, 1.00],
        [0.14, -0.99, 0.03, 1.00],
        [-0.76, -0.65, 0.04, 1.00],
        [-0.96, 0.28, 0.05, 1.00],
    ]
    table = PositionTable(SinusoidalConfig(first=1, max_len=5), 4)
    return {"positions": positions, "d_model": 4, "frequencies": [1.0, 0.01]}, expected, table(5)


def _self_attention() -> _Example:
    scores = [0.25, 0.33, 0.66, 0.42, 0.03]
    return {"tokens": LABELS, "scores": scores}, [0.18, 0.19, 0.27, 0.21, 0.14], _look(scores)[0]


def _causal_mask() -> _Example:
    scores = [0.48, 0.82, 0.65]
    allowed = masks.causal(3, 3)[1].tolist()
    inputs = {
        "tokens": ["START", "I", "love"],
        "row": "I",
        "scores": scores,
        "after_mask": [score if seen else "-inf" for score, seen in zip(scores, allowed, strict=True)],
    }
    return inputs, [0.42, 0.58, 0.0], _look(scores, causal=True)[1]


def _single_token() -> _Example:
    return {"tokens": ["START"], "scores": [0.3]}, [[1.0]], _look([0.3], causal=True)


_QUERY = [0.45, 0.30, 1.35, 0.50]
_KEYS = {"我": [0.72, 0.48, 0.15, 1.20], "爱": [1.55, -0.35, 0.62, 0.88]}


def _cross_scores() -> _Example:
    layer = CrossAttention(AttentionConfig(n_heads=1, bias=False), 4)
    for projection in (layer.query, layer.key, layer.value, layer.out):
        projection.weight.copy_(torch.eye(4))
    memory = torch.tensor([list(_KEYS.values())])
    with record(layer) as trace:
        layer(torch.tensor([[_QUERY]]), Context(memory_BSD=memory))
    inputs = {"query": _QUERY, "keys": _KEYS, "scale": "1/√4"}
    return inputs, [0.635, 0.935], trace["scores"][0, 0, 0]


def _cross_weights() -> _Example:
    scores = [0.635, 0.935, 1.012, 0.346, 0.498]
    return {"tokens": LABELS, "scores": scores}, [0.184, 0.249, 0.269, 0.138, 0.161], _look(scores)[0]


_ROWS: dict[str, tuple[list[float], list[float]]] = {
    "我": ([1.28, 1.18, 0.09, 2.05], [0.19, 0.04, -1.52, 1.29]),
    "爱": ([1.92, -0.75, 0.55, 1.34], [1.15, -1.51, -0.21, 0.57]),
    "处理": ([-0.61, -1.13, 0.38, 1.83], [-0.65, -1.11, 0.23, 1.52]),
}


def _layer_norm(name: str) -> _Example:
    x, y = _ROWS[name]
    x_D = torch.tensor(x)
    inputs = {"token": name, "x": x, "mean": float(x_D.mean()), "variance": float(x_D.var(correction=0))}
    return inputs, y, build_norm(LayerNormConfig(), 4)(x_D)


def _output_layer() -> _Example:
    state, logits = [1.85, 0.32, 0.15, 0.92], [8.5, 2.1, 1.8, 0.3, -0.5]
    state_D, logits_V = torch.tensor(state), torch.tensor(logits)
    embedding = TokenEmbedding(EmbedConfig(vocab_size=5), 4)
    embedding.weight.copy_(torch.outer(logits_V, state_D) / state_D.dot(state_D))
    head = OutputHead(HeadConfig(), 4, 5, tied=True)
    expected = [0.9967, 0.0017, 0.0012, 0.0003, 0.0001]
    return {"decoder_state": state, "logits": logits}, expected, head(state_D, embedding).softmax(-1)


def _words(*texts: list[str]) -> list[str]:
    return ["<pad>", "<bos>", "<eos>", *dict.fromkeys(word for text in texts for word in text)]


def _autoregression() -> _Example:
    source, target = ["我", "爱", "NLP"], ["I", "love", "NLP"]
    names = _words(source, target)
    batch = collate(
        [[names.index(w) for w in source]], [[names.index(w) for w in target]], pad_id=0, bos_id=1, eos_id=2
    )
    shown = {"<bos>": "START", "<eos>": "END"}
    read = [shown.get(names[i], names[i]) for i in batch.target_BT[0].tolist()]
    said = [shown.get(names[i], names[i]) for i in batch.labels_BT[0].tolist()]
    expected = [[["START", "I", "love", "NLP"][: n + 1], [*target, "END"][n]] for n in range(4)]
    return {"source": source}, expected, [[read[: n + 1], said[n]] for n in range(len(said))]


def _shift_right() -> _Example:
    source, target = ["我", "喜欢", "打", "篮球"], ["I", "like", "playing", "basketball"]
    names = _words(source, target)
    batch = collate(
        [[names.index(w) for w in source]], [[names.index(w) for w in target]], pad_id=0, bos_id=1, eos_id=2
    )
    computed = {
        "decoder_input": " ".join(names[i] for i in batch.target_BT[0].tolist()),
        "labels": " ".join(names[i] for i in batch.labels_BT[0].tolist()),
    }
    expected = {
        "decoder_input": "<bos> I like playing basketball",
        "labels": "I like playing basketball <eos>",
    }
    return {"source": " ".join(source), "target": " ".join(target)}, expected, computed


def _batch_shapes() -> _Example:
    tokens, mask = pad([[5] * length for length in (8, 3, 5, 2)], 0)
    assert mask is not None
    embedded = build("transformer-base", device="meta").embed(tokens.to("meta"))
    computed = {"token_ids": list(tokens.shape), "after_embedding_d512": list(embedded.shape)}
    return {"lengths": mask.sum(1).tolist()}, {"token_ids": [4, 8], "after_embedding_d512": [4, 8, 512]}, computed


def _attention_shapes() -> _Example:
    n_source, n_target = 5, 3
    model = build("transformer-teaching").eval()
    with record(model) as trace:
        model(torch.ones(1, n_source, dtype=torch.long), torch.ones(1, n_target, dtype=torch.long))
    taps = {"Q": "q", "K": "k", "scores": "scores", "out": "z"}
    places = {"self": "encoder.layers.0.mixer", "cross": "decoder.layers.0.cross"}
    computed = {
        kind: {part: list(trace[f"{place}.{tap}"].shape[2:]) for part, tap in taps.items()}
        for kind, place in places.items()
    }
    expected = {
        "self": {"Q": [5, 4], "K": [5, 4], "scores": [5, 5], "out": [5, 4]},
        "cross": {"Q": [3, 4], "K": [5, 4], "scores": [3, 5], "out": [3, 4]},
    }
    return {"L_E": n_source, "L_D": n_target, "d_k": 4}, expected, computed


def _parameter_counts() -> _Example:
    names = {"gpt2-small": "gpt2", "gpt3-175b": "gpt3-175b"}
    computed = {name: build(preset, device="meta").num_parameters() for name, preset in names.items()}
    return {"presets": names}, {"gpt2-small": 124439808, "gpt3-175b": 174604259328}, computed


def _widths() -> _Example:
    expected = {"transformer-base": 512, "bert-base": 768, "gpt2-small": 768, "gpt3-175b": 12288, "llama2-70b": 8192}
    presets = {name: "gpt2" if name == "gpt2-small" else name for name in expected}
    return {"presets": presets}, expected, {name: configure(preset).d_model for name, preset in presets.items()}


def agrees(example: dict[str, Any]) -> bool:
    """Whether what is computed is what is printed, within the tolerance."""
    return _near(example["computed"], example["expected"], example["tolerance"])


def _near(computed: Any, expected: Any, tolerance: float) -> bool:
    if isinstance(expected, dict):
        return computed.keys() == expected.keys() and all(_near(computed[k], expected[k], tolerance) for k in expected)
    if isinstance(expected, list):
        pairs = zip(computed, expected, strict=True)
        return len(computed) == len(expected) and all(_near(a, b, tolerance) for a, b in pairs)
    if isinstance(expected, float):
        return math.isclose(computed, expected, rel_tol=0, abs_tol=tolerance)
    return bool(computed == expected)
