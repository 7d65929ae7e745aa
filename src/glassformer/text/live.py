"""A line's translation told while it is written, never a character that may yet be another one."""

from __future__ import annotations

from dataclasses import replace

from glassformer.text.pipeline import Draft, Line, Part


class LiveLine:
    """Gives what is settled of a line's translation, piece by piece; joined, the pieces are `Line.translation`.

    Args:
        line: with its sentences, not yet translated; they are to be written and settled in their order.
    """

    def __init__(self, line: Line) -> None:
        self.line = line
        self._settled: list[Part] = []
        self._told = 0

    def write(self, part: Part, answer: str) -> str:
        """What can be told when the answer to the next sentence begins so.

        Nothing of a sentence with masks or terms in it, since the answer's end decides where the masked goes and if
        the terms are there; and nothing before the first letter or digit, on which the blank before it depends.
        """
        if part.protected.spans or part.termed or not any(map(str.isalnum, answer)):
            return ""
        begun = replace(part, protected=replace(part.protected, suffix=""), separator="", draft=Draft(answer))
        return self._tell([*self._settled, begun])

    def settle(self, part: Part) -> str:
        """What can be told when the next sentence has its final answer."""
        self._settled.append(part)
        return self._tell([*self._settled[:-1], replace(part, separator="")])

    def finish(self) -> str:
        """What is left when all sentences are settled."""
        return self._tell(self._settled)

    def _tell(self, parts: list[Part]) -> str:
        text = self.line.answered(parts).translation
        new, self._told = text[self._told :], max(self._told, len(text))
        return new
