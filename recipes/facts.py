"""Writes the data of bert-facts.yaml: reports of sales, questions about them, and the words that answer."""

import json
import random
from pathlib import Path

NAMES = ["Ada", "Ben", "Cleo", "Dan", "Eve", "Finn", "Gwen", "Hugo", "Ida", "Jon", "Kim", "Leo", "Mia", "Noa"]
KINDS = ["old", "red", "small", "silver", "broken", "green", "heavy", "round"]
THINGS = ["coin", "lamp", "book", "map", "bell", "drum", "kite", "vase", "table with three legs", "box of letters"]
PLACES = ["Rome", "the harbour", "a small village", "Paris", "the old market", "Oslo"]
DAYS = ["Monday", "the first of May", "a rainy Sunday", "Friday", "Christmas Eve"]
QUESTIONS = {
    "seller": "Who sold something?",
    "buyer": "Who bought it?",
    "thing": "What was sold?",
    "place": "Where was it sold?",
    "price": "What did it cost?",
    "day": "When was it sold?",
}


def report(rng: random.Random) -> tuple[str, dict[str, str]]:
    """A report, and what it says of whom and what; it leaves things out, and says the rest in any order."""
    seller, buyer, other = rng.sample(NAMES, 3)
    thing = f"{rng.choice(['the', 'one', 'this'])} {rng.choice(KINDS)} {rng.choice(THINGS)}"
    told = {"seller": seller, "thing": thing}
    free = {
        "buyer": ("to", buyer),
        "place": ("in", rng.choice(PLACES)),
        "price": ("for", f"{rng.randint(2, 99)} {rng.choice(['coins', 'euros', 'silver dollars'])}"),
        "day": ("on", rng.choice(DAYS)),
    }
    clauses = []
    for key in rng.sample(list(free), rng.randint(2, 4)):
        joint, said = free[key]
        told[key] = said
        clauses.append(f"{joint} {said}")
    before, after = (rng.choice(["", f"{other} was there. ", f"It was {rng.choice(KINDS)}. "]) for _ in range(2))
    return f"{before}{seller} sold {thing} {' '.join(clauses)}. {after}".strip(), told


def question(rng: random.Random) -> dict[str, str]:
    """One that the report may have no answer to."""
    text, told = report(rng)
    asked = rng.choice(list(QUESTIONS))
    return {"question": QUESTIONS[asked], "context": text, "answer": told.get(asked, "")}


if __name__ == "__main__":
    rng = random.Random(0)
    folder = Path("runs/facts")
    folder.mkdir(parents=True, exist_ok=True)
    for name, count in (("dev", 500), ("train", 10_000)):
        rows = "".join(json.dumps(question(rng)) + "\n" for _ in range(count))
        (folder / f"{name}.jsonl").write_text(rows, encoding="utf-8")
