"""What a request can be told instead of an answer, with the status that HTTP has for it."""

from __future__ import annotations

from glassformer.errors import UserError


class Problem(UserError):
    """A mistake in a request, in one line."""

    status = 400


class Missing(Problem):
    """No such model, run or tensor."""

    status = 404


class TooLong(Problem):
    """More than is shown at once."""

    status = 413


class Busy(Problem):
    """Others are being served."""

    status = 503
