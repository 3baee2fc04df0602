"""Where stamps come from: clocks in milliseconds since 1970 that replicas can agree on.

The memory backend has one process and goes by `steady`; the Kubernetes backend goes by `ServerClock`, Redis by its own
server's TIME.
"""

from __future__ import annotations

import email.utils
import time
from collections.abc import Callable
from typing import Final

Clock = Callable[[], int]

#: An HTTP date has no fraction and is a while on its way; smaller differences cannot be told.
_TOLERATED: Final = 2000


def wall() -> int:
    """This host's clock."""
    return time.time_ns() // 1_000_000


def steady() -> Clock:
    """A clock that never jumps: this host's as it is now, carried on by its monotonic one."""
    started = time.time() - time.monotonic()
    return lambda: int((started + time.monotonic()) * 1000)


class ServerClock:
    """This host's clock, put right by the dates of a server's answers when it is off by more than two seconds.

    Replicas on hosts whose clocks differ would otherwise judge each other's stamps: one that is a minute and a half
    ahead would mark every source stale.

    Args:
        clock: This host's clock.
    """

    def __init__(self, clock: Clock = wall) -> None:
        self._clock = clock
        self._seen = ""
        self.correction = 0

    def __call__(self) -> int:
        """The time by the server's clock, to about two seconds."""
        return self._clock() + self.correction

    def saw(self, date: str) -> None:
        """Take note of an answer's Date header; anything that is no date is passed over."""
        if date == self._seen:
            return
        self._seen = date
        try:
            there = email.utils.parsedate_to_datetime(date).timestamp() * 1000 + 500
        except (TypeError, ValueError):
            return
        difference = round(there) - self._clock()
        self.correction = difference if abs(difference) > _TOLERATED else 0
