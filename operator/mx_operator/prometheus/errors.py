"""What the seam to Prometheus raises, and what was at the bottom of an error of the libraries below it.

PrometheusError
"""

from __future__ import annotations

import re
from typing import Final

_NOISE: Final = re.compile(r"^\[[^\]]*\] | \(_ssl\.c:\d+\)")


class PrometheusError(Exception):
    """A query that gave no complete answer.

    Attributes:
        reason: One CamelCase word for conditions, such as `PartialResponse`, `Timeout`, `HTTP503`.
    """

    def __init__(self, reason: str, message: str) -> None:
        self.reason = reason
        super().__init__(message)


def cause(error: BaseException) -> str:
    """What an error comes from, in one short line without the classes and objects that passed it on."""
    seen = [error]
    while (inner := _inner(seen[-1])) is not None and inner not in seen:
        seen.append(inner)
    root = seen[-1]
    text = getattr(root, "strerror", None) or str(root) or type(root).__name__
    return _NOISE.sub("", " ".join(str(text).split()))[:300]


def _inner(error: BaseException) -> BaseException | None:
    known = (getattr(error, "reason", None), error.__cause__, *error.args)
    return next((one for one in known if isinstance(one, BaseException)), None)
