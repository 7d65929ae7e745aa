"""Regular expressions that are compiled when they are first used: a process that translates a sentence needs few."""

from __future__ import annotations

import re
from typing import Any, cast


class _Lazy:
    def __init__(self, pattern: str, flags: int) -> None:
        self._what = pattern, flags

    def __getattr__(self, name: str) -> Any:
        # Kept on the instance, so that the second time nothing stands between the caller and the compiled pattern.
        value = self.__dict__[name] = getattr(re.compile(*self._what), name)
        return value


def lazy(pattern: str, flags: int = 0) -> re.Pattern[str]:
    """What `re.compile` gives, except that a mistake in the pattern shows at its first use."""
    return cast("re.Pattern[str]", _Lazy(pattern, flags))
