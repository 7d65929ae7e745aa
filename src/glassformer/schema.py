"""The base of every configuration: immutable data whose mistakes are told in one line. Imports no torch."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from glassformer.errors import UserError

Positive = Annotated[int, Field(gt=0, le=2**31 - 1)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Length = Annotated[int, Field(gt=0, le=2**24)]
"""Of a table of positions, which takes memory for each."""
MOST_BLOCKS = 10_000
"""Of a stack, which is written out block by block."""


class Config(BaseModel):
    """Base of every configuration: immutable, strict about keys, round-trips through plain dicts."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], where: str = "config") -> Self:
        """Builds the configuration from plain data.

        Args:
            data: What ``to_dict`` gave, or a YAML file's content.
            where: What to call the data in an error, such as a file's path.

        Raises:
            UserError: On an unknown key (with the nearest known one), a missing key, or a value out of range.
        """
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            raise UserError(explain(cls, error, where)) from None

    def to_dict(self) -> dict[str, Any]:
        """Gives plain data (JSON and YAML types) that ``from_dict`` turns back into an equal configuration."""
        return self.model_dump(mode="json")


UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")


def explain(config: type[Config], error: ValidationError, where: str) -> str:
    """Says the first problem of a validation in one line."""
    errors = error.errors(include_url=False)
    # A misspelt key is also a missing one, but the spelling is what to mend.
    first = next((each for each in errors if each["type"] in UNKNOWN), errors[0])
    path, here = _resolve(config, first["loc"])
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    if first["type"] in UNKNOWN:
        near = difflib.get_close_matches(str(first["loc"][-1]), here, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else f"; known here: {', '.join(here)}" if here else ""
        return f"{where}: unknown key {path!r}{hint}{more}"
    if first["type"] == "union_tag_invalid":
        tag, known = first["ctx"]["tag"], first["ctx"]["expected_tags"]
        near = difflib.get_close_matches(tag.lower(), known.replace("'", "").split(", "), n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known are {known}"
        return f"{where}: {path}: unknown type {tag!r}; {hint}{more}"
    if first["type"] == "union_tag_not_found":
        return f"{where}: {path}: has no type, which says what it is; give one{more}"
    message = first["msg"].removeprefix("Value error, ")
    value = first.get("input")
    plain = isinstance(value, str | int | float | bool | None) and first["type"] != "missing"
    got = f", got {value!r}" if plain else ""
    return f"{where}: {path}: {message}{got}{more}" if path else f"{where}: {message}{more}"


def _resolve(config: type[BaseModel], loc: tuple[int | str, ...]) -> tuple[str, list[str]]:
    """Turns an error's location into a path of keys and indices, and lists the keys known where the path ends."""
    models: list[type[BaseModel]] = [config]
    path: list[str] = []
    for depth, part in enumerate(loc):
        chosen = [m for m in models if "type" in m.model_fields and m.model_fields["type"].default == part]
        if chosen:  # pydantic names the chosen member of a union; the data has no such key
            models = chosen
            continue
        path.append(str(part))
        if isinstance(part, str) and depth < len(loc) - 1:
            fields = [model.model_fields[part] for model in models if part in model.model_fields]
            models = [inner for field in fields for inner in _models_in(field.annotation)]
    return ".".join(path), [name for model in models for name in model.model_fields]


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in getattr(annotation, "__args__", ()) for model in _models_in(part)]


def type_or(default: str) -> Callable[[Any], Any]:
    """Tells the members of a union apart by ``type``; data without one, as old files hold it, is the default's."""

    def tag(data: Any) -> Any:
        return data.get("type", default) if isinstance(data, Mapping) else getattr(data, "type", default)

    return tag


def unfolded(entries: Sequence[Any]) -> list[Any]:
    """The blocks of a stack one by one, of data where equal neighbours are folded.

    Raises:
        ValueError: An entry is folded otherwise, or stands for more blocks than a stack holds.
    """
    blocks: list[Any] = []
    for index, entry in enumerate(entries):
        if not isinstance(entry, Mapping) or "repeat" not in entry:
            blocks.append(entry)
            continue
        count = entry["repeat"]
        if set(entry) != {"repeat", "block"} or not isinstance(count, int) or count < 1:
            raise ValueError(f'blocks entry {index}: equal blocks are given as {{"repeat": 6, "block": {{...}}}}')
        if count > MOST_BLOCKS:
            raise ValueError(f"blocks entry {index}: repeat {count}, but a stack holds at most {MOST_BLOCKS} blocks")
        blocks.extend([entry["block"]] * count)
    return blocks
