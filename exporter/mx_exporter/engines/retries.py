"""When to try a target again: at once while it answers, ever more seldom while it does not."""

from __future__ import annotations

import zlib


def delay(failures: int, interval: float, longest: float) -> float:
    """Seconds until the next attempt, from the beginning of the last one.

    Args:
        failures: Failed attempts since the last good one.
        interval: Seconds between two scrapes of a good target.
        longest: What a delay grows up to.

    Returns:
        The interval after a good attempt and after the first failed one, then twice as long each time.
    """
    doublings = min(max(failures - 1, 0), 32)
    return min(interval * 2.0**doublings, max(longest, interval))


def offset(key: str, interval: float) -> float:
    """Where in the interval a target has its turn, so that all of them are not read in the same moment."""
    return zlib.crc32(key.encode()) / 2**32 * interval
