"""How well a model translates around placeholders, by `python -m benchmarks.placeholders`.

Where a pair says the same number, Latin word or term on both sides, it gives way to a placeholder. What counts is what
the model itself does, before `Protected.restore` repairs anything, and then the words around.
"""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import typer

from glassformer.data.corpus import Pair, read_pairs
from glassformer.text.masks import LITERAL, MASK, key, mask_pattern
from glassformer.text.protect import Protected, protect
from glassformer.train.evaluate import corpus_bleu
from glassformer.train.masking import replaced, shared_places

PLACEHOLDERS = ("%s", "{{name}}", "<b>", "https://example.com/a?b=1")
WORDS = ("Qa", "Qb", "Qc", "Qd")
"""What stands for a placeholder while BLEU counts, so that a long one is not worth more than a short one."""


class Case(NamedTuple):
    """A pair with placeholders in it, and as it was."""

    pair: Pair
    original: Pair


def cases(pairs: list[Pair], terms: list[Pair]) -> list[Case]:
    """The pairs that can hold placeholders, the kinds of which take turns."""
    found: list[Case] = []
    for pair in pairs:
        if places := shared_places(pair, terms)[: len(PLACEHOLDERS)]:
            turn = len(found) % len(PLACEHOLDERS)
            names = (PLACEHOLDERS[turn:] + PLACEHOLDERS[:turn])[: len(places)]
            source, target = ([getattr(place, side) for place in places] for side in Pair._fields)
            found.append(Case(Pair(replaced(pair.source, source, names), replaced(pair.target, target, names)), pair))
    return found


def survivors(protected: Protected, raw: str) -> int:
    """How many masks stand in the model's answer exactly once."""
    pattern = mask_pattern(protected.style, tuple(span.text for span in protected.spans))
    seen = [key(match[0]) for match in pattern.finditer(raw)]
    return sum(seen.count(key(span.mask)) == 1 for span in protected.spans)


def _words(text: str) -> str:
    for placeholder, word in zip(PLACEHOLDERS, WORDS, strict=True):
        text = text.replace(placeholder, f" {word} ")
    return " ".join(text.split())


def main(
    tsv: Annotated[str, typer.Option(help="Pairs with a column for each language.")],
    source: Annotated[str, typer.Option("--from")],
    to: Annotated[str, typer.Option("--to")],
    model: Annotated[str, typer.Option(help="A MODEL.")] = "zh-en",
    terms: Annotated[str, typer.Option(help="Terms that placeholders may replace.")] = "recipes/mask-terms.tsv",
    styles: Annotated[str, typer.Option(help="Spellings of masks, by commas.")] = f"{MASK},{LITERAL}",
    beam: int = 5,
) -> None:
    """Prints a row for each spelling of masks: the share that came through by itself, and BLEU with placeholders in."""
    from glassformer.api import load

    translator: Any = load(model)

    def translate(texts: list[str]) -> list[str]:
        answers: list[str] = translator.translate(texts, to, source, beam_size=beam, mask=None)
        return answers

    found = cases(*(read_pairs(path, source=source, target=to) for path in (tsv, terms)))
    plain = translate([case.original.source for case in found])
    bleu = corpus_bleu(plain, [case.original.target for case in found], to)
    print(f"{source}→{to}, {len(found)} of the pairs, beam {beam}; without placeholders BLEU {bleu:.1f}")
    references = [_words(case.pair.target) for case in found]
    for style in styles.split(","):
        masked = [protect(case.pair.source, mask=style) for case in found]
        raw = translate([protected.text for protected in masked])
        through = sum(map(survivors, masked, raw))
        total = sum(len(protected.spans) for protected in masked)
        restored = [_words(protected.restore(answer)) for protected, answer in zip(masked, raw, strict=True)]
        bleu = corpus_bleu(restored, references, to)
        print(f"{style:8} {through / total:6.1%} of {total} came through alone, BLEU {bleu:.1f}")


if __name__ == "__main__":
    typer.run(main)
