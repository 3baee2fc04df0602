"""The decisions of the server, without I/O: which rows a listing shows, and what the reaper does to which row.

Called by `service` and `reaper` with a listing of the backend; the same on every backend.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Final

from mx_server.core.records import Listing, Row, Wanted
from mx_wire import SourceStatus

_ACTIVE: Final = frozenset({SourceStatus.SOURCE_STATUS_READY, SourceStatus.SOURCE_STATUS_INITIALIZING})
_IDLE: Final = frozenset({SourceStatus.SOURCE_STATUS_STALE, SourceStatus.SOURCE_STATUS_UNKNOWN})


def fresh(updated_at: int, now: int, timeout: int) -> bool:
    """Whether a stamp is within `timeout` of `now`, all in milliseconds.

    A stamp too far ahead is no fresher than one too far behind: after a clock was set back, a dead source would
    otherwise stay listed until the clock has caught up.
    """
    return updated_at > 0 and abs(now - updated_at) <= timeout


def chosen(listing: Listing, wanted: Wanted, heartbeat_timeout: int) -> list[Row]:
    """The rows that `wanted` asks for, newest first, ties by source and worker id.

    Args:
        listing: What the backend holds.
        wanted: Filters; a limit counts what is left after all of them.
        heartbeat_timeout: Milliseconds after which a READY row no longer counts as READY.
    """
    rows = [row for row in listing.rows if _matches(row, wanted)]
    if wanted.status == SourceStatus.SOURCE_STATUS_READY:
        rows = [row for row in rows if fresh(row.updated_at, listing.taken_at, heartbeat_timeout)]
    rows.sort(key=lambda row: (-row.updated_at, row.head.mx_source_id, row.head.worker_id))
    return rows if wanted.limit is None else rows[: wanted.limit]


def _matches(row: Row, wanted: Wanted) -> bool:
    head = row.head
    return (
        (wanted.status is None or row.status == wanted.status)
        and (wanted.source_id is None or head.mx_source_id == wanted.source_id)
        and (wanted.model_name is None or head.model_name == wanted.model_name)
        and (wanted.rank is None or head.worker_rank == wanted.rank)
        and (wanted.min_updated_at is None or row.updated_at >= wanted.min_updated_at)
        and (wanted.min_training_step is None or _trained(head.training_step, row, wanted.min_training_step))
    )


def _trained(step: int, row: Row, least: int) -> bool:
    return row.head.HasField("training_step") and step >= least


def next_stamp(stored: int, now: int, tolerance: int) -> int:
    """The stamp of an accepted update: later than the stored one, unless that lies implausibly ahead.

    Replicas' clocks differ by a little; a stamp that moved back would hide a heartbeat from whoever looks for newer
    ones. One that lies more than `tolerance` ahead came from a broken clock and is replaced.
    """
    return now if now > stored or stored - now > tolerance else stored + 1


@dataclasses.dataclass(frozen=True, slots=True)
class Reaping:
    """What one scan has to do: rows to mark STALE, and rows to forget."""

    stale: tuple[Row, ...]
    forget: tuple[Row, ...]


def reaping(listing: Listing, heartbeat_timeout: int, gc_timeout: int) -> Reaping:
    """Active rows past the heartbeat timeout go STALE; STALE and UNKNOWN rows past the other are forgotten.

    The upstream server keeps UNKNOWN rows for ever. They are workers that died between publishing and their first
    heartbeat; a worker that lives is at most two refused heartbeats away from registering again.
    """
    stale = (row for row in listing.rows if row.status in _ACTIVE and _old(row, listing, heartbeat_timeout))
    gone = (row for row in listing.rows if row.status in _IDLE and _old(row, listing, gc_timeout))
    return Reaping(tuple(stale), tuple(gone))


def _old(row: Row, listing: Listing, timeout: int) -> bool:
    return not fresh(row.updated_at, listing.taken_at, timeout)


def counted(rows: Iterable[Row]) -> dict[int, int]:
    """How many rows there are of each status that occurs."""
    counts: dict[int, int] = {}
    for row in rows:
        counts[row.status] = counts.get(row.status, 0) + 1
    return counts
