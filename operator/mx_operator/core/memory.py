"""What a process remembers of one MX endpoint between two cycles; never where it comes from, never on disk.

Losing it is safe by design: a process without memory waits for each source's next heartbeat.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Final

from mx_operator.core.gates import UNTRIED, Gate
from mx_operator.core.model import SourceKey

NEVER: Final = float("-inf")


@dataclasses.dataclass(frozen=True, slots=True)
class RowMemory:
    """One source.

    Attributes:
        worker_rank: In the last list that showed it.
        load: In the last list that showed it.
        greatest_ms: The latest `updated_at` ever seen for it.
        first_at: When the first list that showed it was sent.
        gone_at: When the last list that showed it was sent, once another has not; None while it is listed.
        heartbeat_at: No later than its last believed heartbeat happened.
        known_ms: Its latest heartbeat known of, believed or told by another's write, came no later than this stamp;
            0 while none is known of.
        own: What the source itself stored at that heartbeat; None where that was nothing, or cannot be told.
        last_own: The last value of its own ever seen; what a stale load is put back to.
        resets: It was seen going from marked to unmarked: its heartbeats never leave a mark.
        keeps: A heartbeat of its left our mark where it was: the server keeps what a bare heartbeat does not carry.
        written_at: When our last write for it was over, or at the latest can have landed.
        awaits: The next list must show that write: the server said that it stored it.
        sent_at: When that write was sent.
        wrote: What it carried.
        unanswered: Nonces of our writes whose end nobody knows.
        many_ranks: Its worker_id was seen under more than one rank.
        beat_ms: `updated_at` of the last heartbeat seen, for the intervals.
        intervals: Seconds between heartbeats, the last five.
        behind_since: Since when each list that showed it had an older stamp than the greatest; None after one that
            had not.
    """

    worker_rank: int
    load: float | None
    greatest_ms: int
    first_at: float
    gone_at: float | None = None
    heartbeat_at: float | None = None
    known_ms: int = 0
    own: float | None = None
    last_own: float | None = None
    resets: bool = False
    keeps: bool = False
    written_at: float = NEVER
    awaits: bool = False
    sent_at: float = NEVER
    wrote: float | None = None
    unanswered: tuple[int, ...] = ()
    many_ranks: bool = False
    beat_ms: int = 0
    intervals: tuple[float, ...] = ()
    behind_since: float | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Memory:
    """One endpoint.

    Attributes:
        rows: By source, with those that are no longer listed for a while.
        list_before_at: When the last list was sent that was not empty; None before the first.
        newest_ms: The latest `updated_at` of any row of any list.
        measured_at: When each remembered source last had a fresh reading.
        gate: Whether the server stores what it is sent.
    """

    rows: Mapping[SourceKey, RowMemory] = dataclasses.field(default_factory=dict)
    list_before_at: float | None = None
    newest_ms: int = 0
    measured_at: Mapping[SourceKey, float] = dataclasses.field(default_factory=dict)
    gate: Gate = UNTRIED

    def listed_at(self, row: RowMemory) -> float:
        """When the last list was sent that showed a row of these."""
        if row.gone_at is not None:
            return row.gone_at
        return NEVER if self.list_before_at is None else self.list_before_at

    @property
    def dated(self) -> bool:
        """Whether rows carry the stamps that heartbeats are told by; True before the first list."""
        return self.newest_ms > 0 or self.list_before_at is None
