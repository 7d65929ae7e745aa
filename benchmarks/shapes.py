"""The sizes that are trained, and the arithmetic that one training step of each takes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """A Transformer, and a batch without padding.

    Attributes:
        preset: Ours with these numbers; its vocabulary is ``vocab_size`` here.
        layers: Of the encoder, and as many of the decoder.
        sentences: Of a batch.
        length: Tokens of a source, and as many of a target.
    """

    preset: str
    layers: int
    d_model: int
    n_heads: int
    d_ff: int
    vocab_size: int
    sentences: int
    length: int

    @property
    def tokens(self) -> int:
        """Source and target tokens of a batch."""
        return 2 * self.sentences * self.length


SHAPES = {
    "tiny": Shape("transformer-tiny", 2, 32, 4, 64, 64, 4, 8),
    "small": Shape("transformer-small", 4, 256, 4, 1024, 8000, 64, 32),
    "base": Shape("transformer-base", 6, 512, 8, 2048, 32000, 32, 32),
}
"""``tiny`` says nothing of speed: it is for trying a benchmark out."""


@dataclass(frozen=True)
class Product:
    """Matrix products, ``(m × k) · (k × n)``, ``count`` of them."""

    m: int
    k: int
    n: int
    count: int = 1

    @property
    def flops(self) -> int:
        """A multiplication and an addition for each of m·k·n."""
        return 2 * self.m * self.k * self.n * self.count


def products(shape: Shape) -> list[Product]:
    """Every product of a training step with a weight: forward, and backward for the input and for the weight.

    ``Y = X W`` (N × i · i × o) is followed by ``dX = dY Wᵀ`` (N × o · o × i) and ``dW = Xᵀ dY`` (i × N · N × o). An
    encoder layer has 4 projections of attention and 2 of the feed-forward part, a decoder layer 4 more for
    cross-attention; the output layer maps to the vocabulary.
    """
    rows, d = shape.sentences * shape.length, shape.d_model
    forward = [
        Product(rows, d, d, 12 * shape.layers),
        Product(rows, d, shape.d_ff, 2 * shape.layers),
        Product(rows, shape.d_ff, d, 2 * shape.layers),
        Product(rows, d, shape.vocab_size),
    ]
    backward_input = [Product(p.m, p.n, p.k, p.count) for p in forward]
    backward_weight = [Product(p.k, p.m, p.n, p.count) for p in forward]
    return forward + backward_input + backward_weight


def training_flops(shape: Shape) -> int:
    """FLOPs of one training step, as is usual without norms, activations, softmax, dropout and the optimizer.

    The products with weights, and attention's two products over ``length`` keys, ``4 · length · d_model`` a token and
    layer (one in the encoder, two in the decoder), three times: backward costs twice forward (Kaplan et al. 2020,
    arXiv:2001.08361, section 2.1). A causal layer counts as if it saw every key.
    """
    attention = 3 * shape.layers * 4 * shape.length * shape.d_model * shape.sentences * shape.length
    return sum(product.flops for product in products(shape)) + 3 * attention
