"""Text in and out of ids: tokenizers, explicit normalisation, seeded subword regularisation."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from glassformer.text.bpe_dropout import BpeDropout
    from glassformer.text.tokenizer import Tokenizer

__all__ = ["BpeDropout", "Tokenizer"]


def __getattr__(name: str) -> Any:
    # Lazy, so that `import glassformer` stays free of the tokenizers library until a tokenizer is wanted.
    if name == "Tokenizer":
        from glassformer.text.tokenizer import Tokenizer

        return Tokenizer
    if name == "BpeDropout":
        from glassformer.text.bpe_dropout import BpeDropout

        return BpeDropout
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
