"""The loop that marks silent sources STALE and forgets long-stale ones; it also counts rows for the metrics.

Started by `app` on every replica. Each change is made only if the row is still as the scan read it, so that replicas
do not undo a heartbeat or each other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from mx_server.backends import Backend
from mx_server.core.records import Row
from mx_server.core.rules import counted, reaping
from mx_server.errors import BackendUnavailable
from mx_server.logs import Seldom, log
from mx_server.telemetry import Telemetry

#: Changes in flight; the Kubernetes backend needs one or two requests for each.
_AT_ONCE: Final = 16
#: Seconds that a scan may take however short the interval is.
_LEAST_TIMEOUT: Final = 10.0


class Reaper:
    """Scans the backend every `interval` seconds.

    Args:
        backend: Whose rows.
        telemetry: Where the counts go.
        heartbeat_timeout: Milliseconds without an update after which an active row goes STALE.
        gc_timeout: Milliseconds after which a STALE row is forgotten.
        interval: Seconds between scans.
    """

    def __init__(
        self, backend: Backend, telemetry: Telemetry, heartbeat_timeout: int, gc_timeout: int, interval: float
    ) -> None:
        self._backend = backend
        self._telemetry = telemetry
        self._heartbeat_timeout = heartbeat_timeout
        self._gc_timeout = gc_timeout
        self._interval = interval
        self._seldom = Seldom()

    async def run(self) -> None:
        """Scan for ever; a scan that fails is logged and the next one tries again."""
        while True:
            try:
                async with asyncio.timeout(max(self._interval, _LEAST_TIMEOUT)):
                    await self.scan()
            except (BackendUnavailable, TimeoutError) as error:
                self._telemetry.scanned(None)
                self._telemetry.backend_failed("scan")
                text = f"scan: {self._backend.name} backend: {error or 'no answer in time'}"
                self._seldom.warning(text, text)
            except Exception:  # noqa: BLE001 - a defect in one scan must not end the loop
                self._telemetry.scanned(None)
                log.exception("scan failed; this is a defect of mx-server")
            await asyncio.sleep(self._interval)

    async def scan(self) -> None:
        """One pass."""
        listing = await self._backend.listing(None)
        self._telemetry.scanned(counted(listing.rows))
        work = reaping(listing, self._heartbeat_timeout, self._gc_timeout)
        await self._apply("stale", work.stale, self._backend.expire)
        await self._apply("forgotten", work.forget, self._backend.forget)

    async def _apply(self, action: str, rows: Iterable[Row], change: Callable[[Row], Awaitable[bool]]) -> None:
        gate = asyncio.Semaphore(_AT_ONCE)

        async def changed(row: Row) -> bool:
            async with gate:
                return await change(row)

        work = tuple(rows)
        results = await asyncio.gather(*(changed(row) for row in work), return_exceptions=True)
        names = [row.head.worker_id for row, result in zip(work, results, strict=True) if result is True]
        self._telemetry.reaped(action, len(names))
        if names:
            log.info("scan: %d %s: %s", len(names), action, ", ".join(names[:10]) + ", ..." * (len(names) > 10))
        # Reported once the other rows had their turn: one row that fails must not hold them up.
        for result in results:
            if isinstance(result, BaseException):
                raise result
