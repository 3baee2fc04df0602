"""Sending a cycle's writes: evenly paced, few at a time, each checked once more at the last moment, none repeated."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from mx_operator.core.model import Outcome, Result, Write
from mx_operator.core.rules import GRACE
from mx_operator.mx.errors import DeniedError, MxError, RefusedError
from mx_operator.mx.servers import MxServer

_LOG: Final = logging.getLogger(__name__)
_AT_ONCE: Final = 16
#: A call with less time than this, in seconds, is not worth starting.
_SHORTEST: Final = 0.05


class Sender:
    """Sends for one endpoint; its pace goes on from cycle to cycle."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._next_at = float("-inf")

    async def send(
        self,
        server: MxServer,
        writes: Sequence[Write],
        per_second: float,
        until: float,
        allowed: Callable[[Write], bool],
    ) -> list[Outcome]:
        """Send writes in their order until they are all sent or the time is over.

        Args:
            server: Where to.
            writes: The most important first.
            per_second: At most so many.
            until: Nothing is sent after this.
            allowed: Asked just before each send: is its policy still there and writing?

        Returns:
            One outcome per write, however it ended.
        """
        slots = asyncio.Semaphore(_AT_ONCE)
        sends: list[asyncio.Task[Outcome]] = []
        try:
            for write in writes:
                if not await self._turn(per_second, until):
                    break
                await slots.acquire()
                sends.append(asyncio.create_task(self._one(server, write, slots, until, allowed)))
            if sends:
                await asyncio.wait(sends)
        finally:
            for task in sends:
                task.cancel()  # only where we were cancelled ourselves is any left
        now = self._now()
        unsent = [Outcome(write, Result.UNSENT, now, now) for write in writes[len(sends) :]]
        return [task.result() for task in sends] + unsent

    async def _turn(self, per_second: float, until: float) -> bool:
        now = self._now()
        at = max(now, self._next_at)
        if at > until:
            return False
        self._next_at = at + 1.0 / per_second
        if at > now:
            await asyncio.sleep(at - now)
        return True

    async def _one(
        self,
        server: MxServer,
        write: Write,
        slots: asyncio.Semaphore,
        until: float,
        allowed: Callable[[Write], bool],
    ) -> Outcome:
        try:
            return await self._sent(server, write, until, allowed)
        finally:
            slots.release()

    async def _sent(self, server: MxServer, write: Write, until: float, allowed: Callable[[Write], bool]) -> Outcome:
        now = self._now()
        deadline = min(GRACE, write.answer_before - now)
        if now > write.send_before or now > until or deadline < _SHORTEST or not allowed(write):
            return Outcome(write, Result.UNSENT, now, now)
        stored, detail, result = None, "", Result.ACCEPTED
        try:
            stored = await server.write(write, deadline)
        except RefusedError as error:
            result, detail = Result.REFUSED, str(error)
        except DeniedError as error:
            result, detail = Result.DENIED, str(error)
        except MxError as error:
            result, detail = Result.FAILED, str(error)
        except Exception as error:  # noqa: BLE001 (a defect with one write must not end the others')
            _LOG.exception("write for %s: unexpected error", write.key.worker_id)
            result, detail = Result.FAILED, repr(error)
        return Outcome(write, result, now, self._now(), detail, stored)
