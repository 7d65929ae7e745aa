"""Mamba: a decoder of selective state spaces alone; no attention, no positions, no feed-forward parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from glassformer.config import (
    Activation,
    BlockConfig,
    EmbedConfig,
    HeadConfig,
    InitConfig,
    MambaConfig,
    ModelConfig,
    Positive,
    PositiveFloat,
    RMSNormConfig,
    StackConfig,
    StateSpaceConfig,
)
from glassformer.errors import UserError
from glassformer.families.family import Family, Preset
from glassformer.families.keys import Keys, hf_activation, hf_architectures
from glassformer.weights import Rule, Split, Tie, both

ARCHITECTURES = {"MambaForCausalLM": HeadConfig(), "MambaModel": None}


def mamba(
    *,
    d_model: Positive,
    n_layers: Positive,
    vocab_size: Positive = 50280,
    expand: Positive = 2,
    d_state: Positive = 16,
    d_conv: Positive = 4,
    dt_rank: Positive | None = None,
    bias: bool = False,
    conv_bias: bool = True,
    activation: Activation = "silu",
    dt_min: PositiveFloat = 0.001,
    dt_max: PositiveFloat = 0.1,
    eps: PositiveFloat = 1e-5,
    tie: bool = True,
    dropout: float = 0.0,
) -> ModelConfig:
    """Spells out a decoder from the numbers of its papers.

    Args:
        vocab_size: GPT-NeoX's 50,277, rounded up to a multiple of 8.
        expand: Inner features for each of ``d_model``.
        dt_rank: Rank of the step sizes' projection; ``d_model / 16`` by default.
    """
    mixer = MambaConfig(
        d_inner=expand * d_model,
        d_state=d_state,
        d_conv=d_conv,
        dt_rank=dt_rank,
        bias=bias,
        conv_bias=conv_bias,
        activation=activation,
        dt_min=dt_min,
        dt_max=dt_max,
    )
    return around(mixer, d_model, n_layers, vocab_size, eps, tie, dropout)


def around(
    mixer: StateSpaceConfig, d_model: int, n_layers: int, vocab_size: int, eps: float, tie: bool, dropout: float
) -> ModelConfig:
    """A decoder of that mixer alone, a norm before each."""
    norm = RMSNormConfig(eps=eps)
    block = BlockConfig(mixer=mixer, norm=norm, order="pre", dropout=dropout)
    return ModelConfig(
        d_model=d_model,
        embed=EmbedConfig(vocab_size=vocab_size, scale=False),
        decoder=StackConfig(blocks=(block,) * n_layers, final_norm=norm, dropout=dropout),
        tie=tie,
        init=InitConfig(type="normal", residual=True),
    )


def take_numbers(keys: Keys) -> dict[str, Any]:
    """Takes the keys that both Mambas have, as arguments of `mamba`."""
    for harmless in ("time_step_floor", "time_step_scale", "time_step_init_scheme", "residual_in_fp32"):
        keys.take(harmless, default=None)
    for harmless in ("rescale_prenorm_residual", "intermediate_size", "id2label", "label2id"):
        keys.take(harmless, default=None)
    keys.only("is_encoder_decoder", False)
    return dict(
        d_model=keys.take("hidden_size", "d_model"),
        n_layers=keys.take("num_hidden_layers", "n_layer"),
        d_conv=keys.take("conv_kernel", default=4),
        bias=keys.take("use_bias", default=False),
        conv_bias=keys.take("use_conv_bias", default=True),
        activation=keys.activation("hidden_act", default="silu"),
        dt_min=keys.take("time_step_min", default=0.001),
        dt_max=keys.take("time_step_max", default=0.1),
        eps=keys.take("layer_norm_epsilon", default=1e-5),
    )


def from_hf(data: Mapping[str, Any]) -> ModelConfig:
    keys = Keys(data)
    for harmless in ("use_mambapy", "use_associative_scan", "d_inner", "fused_add_norm", "pad_vocab_size_multiple"):
        keys.take(harmless, default=None)
    keys.only("ssm_cfg", {})
    keys.only("rms_norm", True)
    rank = keys.take("time_step_rank", default="auto")
    config = mamba(
        **take_numbers(keys),
        vocab_size=keys.take("vocab_size", default=50280),
        expand=keys.take("expand", default=2),
        d_state=keys.take("state_size", default=16),
        dt_rank=None if rank == "auto" else rank,
        tie=keys.take("tie_word_embeddings", default=True),
    )
    head = keys.architecture(ARCHITECTURES)
    keys.done()
    return config.model_copy(update={"head": head})


def told_numbers(config: ModelConfig, mixer: StateSpaceConfig, architectures: Mapping[str, Any]) -> dict[str, Any]:
    """The keys that both Mambas have."""
    assert config.decoder is not None
    return {
        "architectures": hf_architectures(architectures, config),
        "vocab_size": config.target_vocab_size,
        "hidden_size": config.d_model,
        "num_hidden_layers": len(config.decoder.blocks),
        "conv_kernel": mixer.d_conv,
        "use_bias": mixer.bias,
        "use_conv_bias": mixer.conv_bias,
        "hidden_act": hf_activation(mixer.activation),
        "time_step_min": mixer.dt_min,
        "time_step_max": mixer.dt_max,
        "layer_norm_epsilon": config.decoder.blocks[0].norm.eps,
        "tie_word_embeddings": config.tie,
    }


def to_hf(config: ModelConfig) -> dict[str, Any]:
    assert config.decoder is not None
    mixer = config.decoder.blocks[0].mixer if config.decoder.blocks else None
    if not isinstance(mixer, MambaConfig):
        raise UserError("its first mixer is no mamba")
    inner, rank = mixer.inner(config.d_model), mixer.rank(config.d_model)
    return {
        **told_numbers(config, mixer, ARCHITECTURES),
        "expand": max(1, inner // config.d_model),
        "intermediate_size": inner,
        "state_size": mixer.d_state,
        "time_step_rank": rank,
    }


def shared_rules(config: ModelConfig) -> list[Rule]:
    """What both Mambas call alike."""
    ours, theirs = "decoder.layers.*.mixer", "backbone.layers.*.mixer"
    return [
        Rule("embed.weight", "backbone.embeddings.weight"),
        Rule("embed.weight", "lm_head.weight", Tie()) if config.tie else Rule("head.weight", "lm_head.weight"),
        Rule("decoder.final_norm.weight", "backbone.norm_f.weight"),
        Rule("decoder.layers.*.mixer_residual.norm.weight", "backbone.layers.*.norm.weight"),
        *both(f"{ours}.conv", f"{theirs}.conv1d"),
        *both(f"{ours}.out", f"{theirs}.out_proj"),
        Rule(f"{ours}.a_log", f"{theirs}.A_log"),
        Rule(f"{ours}.skip", f"{theirs}.D"),
    ]


def rules(config: ModelConfig) -> Sequence[Rule]:
    """Theirs hold the two projections in as one matrix."""
    ours, theirs = "decoder.layers.*.mixer", "backbone.layers.*.mixer"
    together = [
        Rule((f"{ours}.into.{kind}", f"{ours}.gate.{kind}"), f"{theirs}.in_proj.{kind}", Split((1, 1)))
        for kind in ("weight", "bias")
    ]
    select = Rule(f"{ours}.select.weight", f"{theirs}.x_proj.weight")
    return [*shared_rules(config), *together, select, *both(f"{ours}.step", f"{theirs}.dt_proj")]


PAPER = "Gu and Dao 2023, Mamba, arXiv:2312.00752"
_SIZES = f"{PAPER}; layers, width and vocabulary of the released checkpoints (README of state-spaces/mamba)"

FAMILY = Family(
    name="mamba",
    paper=PAPER,
    kind="decoder",
    configure=mamba,
    presets={
        "mamba-tiny": Preset(dict(d_model=32, n_layers=2, vocab_size=64, d_state=8), "ours, for tests"),
        "mamba-130m": Preset(dict(d_model=768, n_layers=24), _SIZES),
        "mamba-370m": Preset(dict(d_model=1024, n_layers=48), _SIZES),
        "mamba-790m": Preset(dict(d_model=1536, n_layers=48), _SIZES),
        "mamba-1.4b": Preset(dict(d_model=2048, n_layers=48), _SIZES),
        "mamba-2.8b": Preset(dict(d_model=2560, n_layers=64), _SIZES),
    },
    hf_types=("mamba",),
    from_hf=from_hf,
    to_hf=to_hf,
    rules=rules,
    prefix="backbone.",
)
