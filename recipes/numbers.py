"""Writes the data of t5-numbers.yaml: numbers below 1,000,000 in English words, and in digits."""

import random
from pathlib import Path

ONES = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
]
TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]


def words(number: int) -> str:
    """A number below 1,000,000 as it is said."""
    for size, name in ((1000, "thousand"), (100, "hundred")):
        if number >= size:
            rest = number % size
            joint = " and " if rest and rest < 100 else " "
            return f"{words(number // size)} {name}{joint + words(rest) if rest else ''}"
    if number < 20:
        return ONES[number]
    return TENS[number // 10 - 2] + (f"-{ONES[number % 10]}" if number % 10 else "")


if __name__ == "__main__":
    numbers = random.Random(0).sample(range(1_000_000), 20_500)
    folder = Path("runs/numbers")
    folder.mkdir(parents=True, exist_ok=True)
    for name, chosen in (("train", numbers[500:]), ("dev", numbers[:500])):
        rows = "".join(f"{words(number)}\t{number}\n" for number in chosen)
        (folder / f"{name}.tsv").write_text(f"words\tdigits\n{rows}", encoding="utf-8")
