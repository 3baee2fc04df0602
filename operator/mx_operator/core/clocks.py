"""How far the clocks of a server's replicas are apart, as far as the rows tell.

A replica stamps what it stores. Our own writes tell the stamp of the replica that took them to within their round
trip; a source's heartbeat tells its replica's to within the time between two lists. Where the two cannot both be
true of one clock, the rest is skew: it lengthens the time a dead source stays selectable.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping
from typing import Final

from mx_operator.core.memory import Memory, RowMemory
from mx_operator.core.model import Listing, SourceKey

_KEPT: Final = 20
#: A heartbeat somewhere within so many seconds says too little.
_TOO_VAGUE: Final = 16.0


@dataclasses.dataclass(frozen=True, slots=True)
class Clocks:
    """What stamps have shown so far; offsets are server seconds minus monotonic seconds.

    Attributes:
        writes: Offset range of the last own write that was read back.
        skews: Of the last heartbeats, how far outside that range each was.
    """

    writes: tuple[float, float] | None = None
    skews: tuple[float, ...] = ()

    @property
    def skew(self) -> float | None:
        """Median seconds by which heartbeats' stamps are ahead of own writes'; None while nothing was compared."""
        return statistics.median(self.skews) if self.skews else None


def compare(clocks: Clocks, listing: Listing, before: Memory, after: Mapping[SourceKey, RowMemory]) -> Clocks:
    """What is known after a list, given the memory before it and each row's after it."""
    writes, skews = clocks.writes, list(clocks.skews)
    for row in listing.rows:
        earlier, later = before.rows.get(row.key), after[row.key]
        if earlier is None:
            continue
        stamp, listed_at = row.updated_at_ms / 1000, before.listed_at(earlier)
        if earlier.awaits and row.load == earlier.wrote:
            writes = (stamp - earlier.written_at, stamp - earlier.sent_at)
        elif later.heartbeat_at != earlier.heartbeat_at and writes and listing.received_at - listed_at < _TOO_VAGUE:
            skews.append(_outside(stamp - listing.received_at, stamp - listed_at, writes))
    return Clocks(writes, tuple(skews[-_KEPT:]))


def _outside(low: float, high: float, writes: tuple[float, float]) -> float:
    if low > writes[1]:
        return low - writes[1]
    return high - writes[0] if high < writes[0] else 0.0
