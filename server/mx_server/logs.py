"""Log lines that an outage repeats a thousand times a second, said once in a while instead.

Used by `service`, `reaper` and the backends.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable
from typing import Final

log: Final = logging.getLogger("mx_server")
_EVERY: Final = 10.0
_REMEMBERED: Final = 256


class Seldom:
    """Says each kind of warning at most every ten seconds, with how many were left out.

    Args:
        clock: Seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._said: dict[Hashable, tuple[float, int]] = {}

    def warning(self, kind: Hashable, message: str) -> None:
        """Log `message`, unless one of its kind was logged a moment ago."""
        now = self._clock()
        until, left_out = self._said.get(kind, (0.0, 0))
        if now < until:
            self._said[kind] = until, left_out + 1
            return
        log.warning("%s%s", message, f" ({left_out} more like this meanwhile)" if left_out else "")
        if len(self._said) >= _REMEMBERED:
            self._said.clear()
        self._said[kind] = now + _EVERY, 0
