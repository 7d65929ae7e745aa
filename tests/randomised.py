"""Random models and batches for the laws."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from glassformer.config import ModelConfig
from glassformer.families.transformer import transformer
from glassformer.models.build import build_model
from glassformer.models.seq2seq import Seq2Seq

SMALL: dict[str, Any] = dict(d_model=8, n_heads=2, d_ff=12, encoder_layers=2, decoder_layers=2, vocab_size=11)


@torch.no_grad()
def randomise(module: nn.Module, seed: int = 0) -> nn.Module:
    """Draws every parameter, biases and norm weights too: fresh ones are 0 and 1, and would hide one left out."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in module.named_parameters():
        gain = name.endswith("norm.weight")
        parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.4 + (1.0 if gain else 0.0))
    return module


def random_model(config: ModelConfig | None = None, seed: int = 0, **overrides: Any) -> Seq2Seq:
    """A small random model in eval mode."""
    model = build_model(config or transformer(**{**SMALL, "dropout": 0.0, **overrides}))
    randomise(model, seed)
    return model.eval()


@st.composite
def configs(draw: st.DrawFn) -> ModelConfig:
    """Every variant that the parts allow, small."""
    n_heads, d_head = draw(st.sampled_from([(1, None), (2, None), (4, None), (2, 3), (3, 4)]))
    pre = draw(st.booleans())

    def attention(causal: bool) -> dict[str, Any]:
        return dict(n_heads=n_heads, d_head=d_head, causal=causal, bias=draw(st.booleans()))

    def stack(decoder: bool) -> dict[str, Any]:
        position = draw(
            st.sampled_from(
                [
                    None,
                    dict(type="learned", max_len=40),
                    dict(type="sinusoidal", max_len=40, layout="interleaved"),
                    dict(type="sinusoidal", max_len=40, layout="halves", base=100.0, first=2),
                ]
            )
        )
        norm = dict(eps=draw(st.sampled_from([1e-6, 1e-2])), bias=draw(st.booleans()))
        kind = draw(st.sampled_from(["relu", "gelu", "gelu-tanh", "silu"]))
        ffn = dict(d_ff=6, activation=kind, bias=draw(st.booleans()))
        blocks = [
            dict(
                mixer=attention(decoder),
                cross=attention(False) if decoder else None,
                ffn=ffn if draw(st.integers(0, 3)) else None,
                norm=norm,
                order="pre" if pre else "post",
            )
            for _ in range(draw(st.integers(1, 2)))
        ]
        return dict(position=position, blocks=blocks, final_norm=norm if draw(st.booleans()) else None)

    own_target = draw(st.booleans())
    return ModelConfig.from_dict(
        dict(
            d_model=8,
            embed=dict(vocab_size=9, scale=draw(st.booleans())),
            target_embed=dict(vocab_size=7, scale=draw(st.booleans())) if own_target else None,
            encoder=stack(decoder=False),
            decoder=stack(decoder=True),
            head=dict(bias=draw(st.booleans())),
            tie=draw(st.booleans()),
        )
    )


def ids(vocab_size: int, *shape: int, seed: int = 0) -> Tensor:
    """Random token ids."""
    return torch.randint(0, vocab_size, shape, generator=torch.Generator().manual_seed(seed))


def lengths_mask(lengths: list[int], width: int | None = None) -> Tensor:
    """True at the first ``lengths[b]`` places of row b."""
    return torch.arange(width or max(lengths)) < torch.tensor(lengths)[:, None]


def close(actual: Tensor, expected: Tensor, rtol: float = 1e-4, atol: float = 1e-5) -> None:
    torch.testing.assert_close(actual, expected, rtol=rtol, atol=atol)
