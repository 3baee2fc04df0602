"""Where rows live: one narrow interface.

The service and the reaper know `Backend` alone; `memory`, `redis` and `kubernetes` implement it, and one conformance
suite (tests/server/test_conformance.py) runs unchanged against all three.
"""

from __future__ import annotations

from typing import Protocol

from mx_server.core.records import Listing, Outcome, Registration, Row, StatusUpdate
from mx_wire import GetMetadataResponse


class Backend(Protocol):
    """A store of workers. Every method may raise BackendUnavailable, and stamps are the backend's own clock's."""

    name: str

    async def publish(self, registration: Registration) -> None:
        """Store a worker anew: no load, its own status, stamped now; an older registration is replaced whole.

        Raises:
            RegistrationRefused: The store cannot hold it.
        """

    async def update(self, update: StatusUpdate) -> Outcome:
        """Set status and load of a worker that is there under that rank, and stamp it; else change nothing."""

    async def listing(self, source_id: str | None) -> Listing:
        """The rows of one source, or of all."""

    async def fetch(self, source_id: str, worker_id: str) -> GetMetadataResponse | None:
        """Everything about one worker, as GetMetadata answers it; None where there is no such worker."""

    async def expire(self, row: Row) -> bool:
        """Mark a row STALE, without a load, if it is still as it was read; says whether it was."""

    async def forget(self, row: Row) -> bool:
        """Delete a worker if its row is still as it was read; says whether it was."""

    async def check(self) -> None:
        """Ask the store for a sign of life."""

    async def close(self) -> None:
        """Let go of connections."""
