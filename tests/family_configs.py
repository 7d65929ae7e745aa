"""Random small models of every shape, for the laws that all families obey."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from glassformer.config import ModelConfig

VOCAB, D_MODEL, MAX_LEN = 11, 8, 40
ACTIVATIONS = ["relu", "gelu", "gelu-tanh", "silu", "quick-gelu"]
SCALINGS: list[dict[str, Any] | None] = [
    None,
    dict(type="linear", factor=3.0),
    dict(type="llama3", factor=4.0, original_max_len=20),
    dict(type="yarn", factor=4.0, original_max_len=100),
    dict(
        type="yarn", factor=2.0, original_max_len=9, attention_factor=0.7, truncate=False, beta_fast=1.5, beta_slow=0.1
    ),
]


def norms() -> st.SearchStrategy[dict[str, Any]]:
    eps = st.sampled_from([1e-6, 1e-2])
    layer = st.fixed_dictionaries({"type": st.just("layer"), "eps": eps, "bias": st.booleans()})
    return st.one_of(layer, st.fixed_dictionaries({"type": st.just("rms"), "eps": eps}))


def ffns() -> st.SearchStrategy[dict[str, Any]]:
    kinds = {"type": st.sampled_from(["mlp", "gated"]), "activation": st.sampled_from(ACTIVATIONS)}
    return st.fixed_dictionaries({**kinds, "d_ff": st.just(6), "bias": st.booleans()})


def rotaries() -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {
            "base": st.sampled_from([10.0, 10000.0]),
            "fraction": st.sampled_from([0.5, 1.0]),
            "layout": st.sampled_from(["halves", "interleaved"]),
            "scaling": st.sampled_from(SCALINGS),
        }
    )


def optional(draw: st.DrawFn, *values: Any) -> Any:
    return draw(st.sampled_from([None, *values]))


def retention(draw: st.DrawFn) -> dict[str, Any]:
    heads = draw(st.sampled_from([1, 2]))
    more = dict(chunk=draw(st.sampled_from([1, 3, 128])), bias=draw(st.booleans()), d_value=optional(draw, 3))
    more |= dict(eps=draw(st.sampled_from([0.3, 1e-6])))  # a large one, so that the size of the weights counts, too
    return dict(n_heads=heads, d_head=optional(draw, 6), forget=optional(draw, [0.3, 0.01][:heads]), **more)


def mamba(draw: st.DrawFn) -> dict[str, Any]:
    inner = dict(d_inner=optional(draw, 5), d_state=draw(st.sampled_from([1, 3])), dt_rank=optional(draw, 2))
    kinds = dict(bias=draw(st.booleans()), conv_bias=draw(st.booleans()), activation=draw(st.sampled_from(ACTIVATIONS)))
    return dict(**inner, **kinds, d_conv=draw(st.sampled_from([1, 2, 4])))


def mamba2(draw: st.DrawFn) -> dict[str, Any]:
    sizes = dict(
        zip(("n_heads", "n_groups", "d_head"), draw(st.sampled_from([(1, 1, 4), (2, 2, 3), (4, 2, 2)])), strict=True)
    )
    kinds = dict(bias=draw(st.booleans()), conv_bias=draw(st.booleans()), norm_groups=optional(draw, 1))
    more = dict(dt_range=optional(draw, [0.2, 0.9]), chunk=draw(st.sampled_from([1, 3, 64])))
    return dict(**sizes, **kinds, **more, d_state=draw(st.sampled_from([1, 3])), d_conv=draw(st.sampled_from([1, 4])))


def rwkv7(draw: st.DrawFn) -> dict[str, Any]:
    ranks = dict(decay_rank=3, rate_rank=2, value_rank=optional(draw, 2), gate_rank=4)
    return dict(n_heads=draw(st.sampled_from([1, 2])), **ranks)


RECURRENT: dict[str, Callable[[st.DrawFn], dict[str, Any]]] = {
    "retention": retention,
    "mamba": mamba,
    "mamba2": mamba2,
    "lstm": lambda draw: dict(d_hidden=optional(draw, 5), bias=draw(st.booleans())),
    "rwkv4": lambda draw: dict(d_attention=optional(draw, 6)),
    "rwkv5": lambda draw: dict(n_heads=draw(st.sampled_from([1, 4])), gate=draw(st.booleans())),
    "rwkv7": rwkv7,
}
"""Recurrences, which stand in a decoder, and alone or in both directions in an encoder."""


def sliding(draw: st.DrawFn, decoder: bool) -> dict[str, Any]:
    seen = dict(reach=draw(st.sampled_from([0, 1, 3])), dilation=draw(st.sampled_from([1, 2])), causal=decoder)
    return dict(**seen, **sparse(draw), global_tokens=None if decoder else optional(draw, "first", "none"))


def blocks(draw: st.DrawFn, decoder: bool) -> dict[str, Any]:
    seen = dict(block=draw(st.sampled_from([1, 2])), random=draw(st.sampled_from([0, 1])), seed=draw(st.integers(0, 9)))
    return dict(**seen, **sparse(draw), drawn=draw(st.sampled_from(["always", "training"])))


def sparse(draw: st.DrawFn) -> dict[str, Any]:
    heads, size = draw(st.sampled_from([(2, None), (3, 4)]))
    return dict(n_heads=heads, d_head=size, bias=draw(st.booleans()), out_bias=optional(draw, True, False))


ATTENTIVE: dict[str, Callable[[st.DrawFn, bool], dict[str, Any]]] = {"sliding": sliding, "blocks": blocks}
"""Kin of attention; the second argument says whether it stands in a decoder."""

CHANNEL: dict[str, Callable[[st.DrawFn], dict[str, Any]]] = {
    "channel-mix": lambda draw: dict(d_ff=6, gate=draw(st.booleans())),
}
"""Feed-forward parts that remember."""


@st.composite
def kin(draw: st.DrawFn, decoder: bool) -> dict[str, Any]:
    """Any mixer but plain attention."""
    name = draw(st.sampled_from([*RECURRENT, *(name for name in ATTENTIVE if not decoder or name != "blocks")]))
    if name in ATTENTIVE:
        return dict(type=name, **ATTENTIVE[name](draw, decoder))
    mixer = dict(type=name, **RECURRENT[name](draw))
    return dict(type="bidirectional", mixer=mixer) if not decoder and draw(st.booleans()) else mixer


def any_ffns() -> st.SearchStrategy[dict[str, Any]]:
    """Those that remember among them."""
    parts = [
        st.builds(lambda data, n=name: dict(type=n, **data), st.composite(make)()) for name, make in CHANNEL.items()
    ]
    return st.one_of(ffns(), *parts)


@st.composite
def stacks(
    draw: st.DrawFn,
    decoder: bool,
    cross: bool,
    bias: st.SearchStrategy[dict[str, Any] | None],
    mixed: bool = False,
) -> dict[str, Any]:
    """A random stack of attention; ``mixed`` draws every other mixer, too, and no bias of scores."""
    n_heads, n_kv_heads, d_head = draw(
        st.sampled_from([(2, None, None), (2, 1, None), (4, 2, 4), (3, 3, 4), (6, 2, 4)])
    )
    shared = dict(n_heads=n_heads, n_kv_heads=n_kv_heads, d_head=d_head)
    order, rotary = draw(st.sampled_from(["pre", "post"])), draw(st.one_of(st.none(), rotaries()))

    def attention(**more: Any) -> dict[str, Any]:
        own = dict(bias=draw(st.booleans()), out_bias=draw(st.sampled_from([None, True, False])))
        return dict(shared, **own, scale=draw(st.sampled_from([None, 1.0])), **more)

    def mixer() -> dict[str, Any]:
        if mixed and draw(st.integers(0, 3)):
            return draw(kin(decoder))
        return attention(causal=decoder, window=draw(st.sampled_from([None, None, 1, 3])), rotary=rotary)

    def block() -> dict[str, Any]:
        ffn = draw(st.one_of(st.none(), any_ffns() if mixed else ffns()))
        return dict(
            mixer=mixer(),
            cross=attention() if cross else None,
            ffn=ffn,
            norm=draw(norms()),
            order=order,
            parallel=bool(order == "pre" and ffn and not cross and draw(st.booleans())),
        )

    position = st.sampled_from(
        [None, dict(type="learned", max_len=MAX_LEN), dict(type="learned", max_len=MAX_LEN, first=2)]
    )
    return dict(
        position=draw(position),
        bias=None if mixed else draw(bias),
        input_norm=draw(st.one_of(st.none(), norms())),
        blocks=[block() for _ in range(draw(st.integers(1, 2)))],
        final_norm=draw(st.one_of(st.none(), norms())),
    )


ALIBI = st.sampled_from([None, None, {"type": "alibi"}])
HEADS: list[dict[str, Any] | None] = [
    None,
    dict(type="masked-lm", activation="gelu", norm=dict(eps=1e-3)),
    dict(type="masked-lm", activation="relu", norm=dict(type="rms"), bias=False),
    dict(type="classifier", labels=["a", "b", "c"], hidden="tanh"),
    dict(type="classifier", labels=["a", "b"], pool="mean", hidden="relu"),
    dict(type="classifier", labels=["a", "b"], pool="last", bias=False),
    dict(type="token-classifier", labels=["a", "b", "c"]),
    dict(type="span"),
    dict(type="pool"),
    dict(type="pool", pool="first", normalise=False),
    dict(type="pooler"),
]


def _model(embed: dict[str, Any], **parts: Any) -> ModelConfig:
    return ModelConfig.from_dict(dict(d_model=D_MODEL, embed=dict(vocab_size=VOCAB, **embed), **parts))


@st.composite
def decoders(draw: st.DrawFn, mixed: bool = False) -> ModelConfig:
    """GPT, LLaMA, Mistral, GPT-NeoX and whatever else the parts allow; ``mixed`` adds RetNet, Mamba and their kin."""
    head = dict(bias=draw(st.booleans()), scale=draw(st.booleans()))
    stack = draw(stacks(decoder=True, cross=False, bias=ALIBI, mixed=mixed))
    return _model(dict(scale=draw(st.booleans())), decoder=stack, head=head, tie=draw(st.booleans()))


@st.composite
def encoders(draw: st.DrawFn, mixed: bool = False) -> ModelConfig:
    """BERT, RoBERTa and whatever else the parts allow."""
    embed = dict(scale=draw(st.booleans()), token_types=draw(st.sampled_from([0, 2])))
    stack = draw(stacks(decoder=False, cross=False, bias=ALIBI, mixed=mixed))
    return _model(embed, encoder=stack, head=draw(st.sampled_from(HEADS)), tie=draw(st.booleans()))


@st.composite
def relatives(draw: st.DrawFn, mixed: bool = False) -> ModelConfig:
    """T5 and whatever else the parts allow around learned biases."""

    def bias(bidirectional: bool) -> st.SearchStrategy[dict[str, Any]]:
        sizes = {"buckets": st.sampled_from([4, 8, 32]), "max_distance": st.sampled_from([9, 20])}
        return st.fixed_dictionaries({"type": st.just("t5"), **sizes, "bidirectional": st.just(bidirectional)})

    return _model(
        dict(scale=draw(st.booleans())),
        encoder=draw(stacks(decoder=False, cross=False, bias=bias(True), mixed=mixed)),
        decoder=draw(stacks(decoder=True, cross=True, bias=bias(draw(st.booleans())), mixed=mixed)),
        head=dict(bias=draw(st.booleans()), scale=draw(st.booleans())),
        tie=draw(st.booleans()),
    )
