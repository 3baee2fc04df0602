"""Workers in a dictionary of this process: for development, tests and the lab. Nothing outlives the process.

Opened by `mx_server.backends.opening`. One event loop calls it, and no method awaits anything, so that each is atomic.
"""

from __future__ import annotations

import dataclasses

from mx_server.clocks import Clock, steady
from mx_server.core import answers
from mx_server.core.records import Listing, Outcome, Registration, Row, StatusUpdate, Verdict
from mx_server.core.rules import next_stamp
from mx_wire import GetMetadataResponse, SourceStatus


class MemoryBackend:
    """See Backend.

    Args:
        clock: Gives milliseconds since 1970.
    """

    name = "memory"

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or steady()
        self._sources: dict[str, dict[str, tuple[Registration, Row]]] = {}
        self._changes = 0

    async def publish(self, registration: Registration) -> None:
        """Store a worker anew."""
        workers = self._sources.setdefault(registration.source_id, {})
        before = workers.get(registration.worker_id)
        stamp = self._stamp(before[1].updated_at if before else 0)
        row = Row(answers.head(registration), registration.worker.status, stamp, None, self._version())
        workers[registration.worker_id] = registration, row

    async def update(self, update: StatusUpdate) -> Outcome:
        """Set status and load."""
        workers = self._sources.get(update.source_id, {})
        if update.worker_id not in workers:
            return Outcome(Verdict.NO_WORKER)
        registration, row = workers[update.worker_id]
        if row.head.worker_rank != update.rank:
            return Outcome(Verdict.OTHER_RANK, row.head.worker_rank)
        workers[update.worker_id] = registration, self._changed(row, update.status, update.load)
        return Outcome(Verdict.APPLIED)

    async def listing(self, source_id: str | None) -> Listing:
        """The rows of one source, or of all."""
        if source_id is not None:
            return Listing(self._clock(), tuple(row for _, row in self._sources.get(source_id, {}).values()))
        rows = (row for workers in self._sources.values() for _, row in workers.values())
        return Listing(self._clock(), tuple(rows))

    async def fetch(self, source_id: str, worker_id: str) -> GetMetadataResponse | None:
        """Everything about one worker."""
        stored = self._sources.get(source_id, {}).get(worker_id)
        if stored is None:
            return None
        registration, row = stored
        return answers.found(registration, row.status, row.updated_at)

    async def expire(self, row: Row) -> bool:
        """Mark a row STALE if unchanged."""
        registration = self._unchanged(row)
        if registration is None:
            return False
        expired = self._changed(row, SourceStatus.SOURCE_STATUS_STALE, None)
        self._sources[row.head.mx_source_id][row.head.worker_id] = registration, expired
        return True

    async def forget(self, row: Row) -> bool:
        """Delete a worker if unchanged."""
        if self._unchanged(row) is None:
            return False
        workers = self._sources[row.head.mx_source_id]
        del workers[row.head.worker_id]
        if not workers:
            del self._sources[row.head.mx_source_id]
        return True

    async def check(self) -> None:
        """Nothing to ask."""

    async def close(self) -> None:
        """Nothing to let go of."""

    def _unchanged(self, row: Row) -> Registration | None:
        stored = self._sources.get(row.head.mx_source_id, {}).get(row.head.worker_id)
        return stored[0] if stored is not None and stored[1].version == row.version else None

    def _changed(self, row: Row, status: int, load: float | None) -> Row:
        stamp = self._stamp(row.updated_at)
        return dataclasses.replace(row, status=status, updated_at=stamp, load=load, version=self._version())

    def _stamp(self, stored: int) -> int:
        return next_stamp(stored, self._clock(), tolerance=1000)

    def _version(self) -> int:
        self._changes += 1
        return self._changes
