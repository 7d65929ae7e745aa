"""Options of functions, misspelt: told with the nearest known one. Loads nothing heavy."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from typing import Any

from glassformer.errors import UserError


def check_keywords(what: str, given: Iterable[str], known: Container[str], *takers: Callable[..., Any]) -> None:
    """Refuses options that are unknown.

    Args:
        what: The function that was called, such as "translate".
        given: Names of options.
        known: Those that there are.
        takers: Functions and classes whose parameters may be meant as well.

    Raises:
        UserError: One is unknown; the message names the nearest known one.
    """
    name = next((each for each in given if each not in known), None)
    if name is None:
        return
    import difflib
    import inspect

    kinds = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    parameters = [each for taker in takers for each in inspect.signature(taker).parameters.values()]
    names = sorted({each.name for each in parameters if each.kind not in kinds and each.name != "self"})
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(names)}"
    raise UserError(f"{what}: no option {name!r}; {hint}")


def sequence_of_texts(what: str, given: Any) -> list[Any]:
    """One text or several as a list.

    Raises:
        UserError: It is neither.
    """
    if isinstance(given, str):
        return [given]
    if isinstance(given, bytes) or not isinstance(given, Iterable):
        raise UserError(f"{what}: expected a text or a list of texts, got {type(given).__name__}")
    return list(given)
