"""Who the listed workers are: asked of the server once per new worker, then kept while it is remembered.

GetMetadata can be a megabyte, and servers log each call: so never twice for a worker that answered, a few at a time,
and a worker that the server does not know is asked for again only after a while.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

from mx_operator.core.model import Identity, SourceKey
from mx_operator.mx.errors import MxError
from mx_operator.mx.servers import MxServer

_LOG: Final = logging.getLogger(__name__)
_AT_ONCE: Final = 8
#: A fleet that is new to us is asked for without haste: an API server may stand behind each answer.
_PER_SECOND: Final = 400.0
#: Seconds before a worker that was not found, or whose call failed, is asked for again.
_AGAIN: Final = 30.0


class Identities:
    """The identities of one endpoint's workers."""

    def __init__(self, server: Callable[[], MxServer], now: Callable[[], float]) -> None:
        self._server, self._now = server, now
        self._known: dict[SourceKey, Identity] = {}
        self._not_before: dict[SourceKey, float] = {}
        self._wanted: dict[SourceKey, None] = {}
        self._running: set[asyncio.Task[None]] = set()

    def known(self) -> Mapping[SourceKey, Identity]:
        """What is known now."""
        return self._known

    def want(self, keys: Iterable[SourceKey]) -> None:
        """Ask for those that are not known, and for nobody else any more, in the background."""
        now = self._now()
        unknown = (key for key in keys if key not in self._known)
        self._wanted = {key: None for key in unknown if self._not_before.get(key, now) <= now}
        while self._wanted and len(self._running) < _AT_ONCE:
            task = asyncio.create_task(self._work())
            self._running.add(task)
            task.add_done_callback(self._running.discard)
            if len(self._running) >= len(self._wanted):
                break

    async def settled(self, seconds: float) -> None:
        """Wait until everything wanted was asked for, but no longer than this."""
        end = self._now() + seconds
        while self._running and self._now() < end:
            await asyncio.wait(self._running, timeout=end - self._now())

    def keep(self, keys: Collection[SourceKey]) -> None:
        """Forget everybody else."""
        for key in [key for key in self._known if key not in keys]:
            del self._known[key]
        for key in [key for key in self._not_before if key not in keys]:
            del self._not_before[key]

    async def _work(self) -> None:
        while self._wanted:
            key = next(iter(self._wanted))
            del self._wanted[key]
            if key not in self._known:
                await self._ask(key)
                await asyncio.sleep(_AT_ONCE / _PER_SECOND)

    async def _ask(self, key: SourceKey) -> None:
        self._not_before[key] = self._now() + _AGAIN
        try:
            identity = await self._server().identity(key)
        except MxError as error:
            _LOG.debug("GetMetadata of %s: %s", key.worker_id, error)
            return
        except Exception:  # noqa: BLE001 (a defect with one worker must not end the others')
            _LOG.exception("GetMetadata of %s: unexpected error", key.worker_id)
            return
        if identity is not None:
            self._known[key] = identity
            self._not_before.pop(key, None)

    async def close(self) -> None:
        """Stop asking."""
        self._wanted.clear()
        for task in list(self._running):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
