"""Asking the signals of an endpoint's policies, without ever holding up its lists.

Each distinct signal has one query under way at most. An answer is used in one cycle only; one that comes too late
for its cycle is used in the next, aged by the wait, and starts that cycle early.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from mx_operator.core.joins import Index
from mx_operator.core.targets import Answer
from mx_operator.policies.spec import Prometheus, Signal, SourceLoadPolicy
from mx_operator.prometheus.clients import SignalClient
from mx_operator.prometheus.errors import PrometheusError

_LOG: Final = logging.getLogger(__name__)

#: A signal, and where it is asked: two policies with the same share one query.
SignalKey = tuple[Prometheus, Signal]
MakeClient = Callable[[Prometheus, Signal], SignalClient]


@dataclasses.dataclass(frozen=True, slots=True)
class Fetched:
    """How one query ended.

    Attributes:
        at: When.
        took: Seconds.
        index: The answer; None where there was none.
        reason: Why not, as conditions have it.
        message: Why not, for a person.
    """

    at: float
    took: float
    index: Index | None
    reason: str = ""
    message: str = ""


class Poller:
    """One signal: at most one query under way, and the last answer until it is used.

    `took` is how many seconds the last query took, 0 if it failed.
    """

    def __init__(self, client: SignalClient, now: Callable[[], float]) -> None:
        self._client, self._now = client, now
        self._running: asyncio.Task[Fetched] | None = None
        self._fetched: Fetched | None = None
        self.took = 0.0

    def start(self) -> None:
        """Ask, unless a query is under way or an answer waits to be used."""
        if self._running is None and self._fetched is None:
            self._running = asyncio.create_task(self._ask())

    @property
    def running(self) -> asyncio.Task[Fetched] | None:
        """The query under way."""
        self._collect()
        return self._running

    def take(self) -> Fetched | None:
        """The answer that was not used yet."""
        self._collect()
        fetched, self._fetched = self._fetched, None
        return fetched

    def _collect(self) -> None:
        if self._running is not None and self._running.done():
            self._fetched = self._running.result()
            self.took = self._fetched.took if self._fetched.index is not None else 0.0
            self._running = None

    async def _ask(self) -> Fetched:
        started = self._now()
        try:
            answer = await self._client.ask()
        except PrometheusError as error:
            return Fetched(self._now(), self._now() - started, None, error.reason, str(error))
        except Exception as error:  # noqa: BLE001 (a defect in one signal must not end the loop)
            _LOG.exception("signal: unexpected error")
            return Fetched(self._now(), self._now() - started, None, "Internal", repr(error))
        return Fetched(self._now(), self._now() - started, answer)

    async def close(self) -> None:
        """Give up what is under way."""
        self._client.close()
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait([self._running])


class Signals:
    """All signals of an endpoint."""

    def __init__(self, make: MakeClient, now: Callable[[], float]) -> None:
        self._make, self._now = make, now
        self._pollers: dict[SignalKey, Poller] = {}

    async def use(self, policies: Sequence[SourceLoadPolicy]) -> None:
        """Have exactly the pollers that these policies need."""
        wanted = {(policy.prometheus, signal) for policy in policies for signal in policy.signals}
        for key in [key for key in self._pollers if key not in wanted]:
            await self._pollers.pop(key).close()
        for key in wanted - self._pollers.keys():
            self._pollers[key] = Poller(self._make(*key), self._now)

    def start(self) -> None:
        """Ask every signal that has no query under way."""
        for poller in self._pollers.values():
            poller.start()

    async def wait(self, seconds: float) -> None:
        """Wait for the queries under way, but no longer than this."""
        running = self._running()
        if running:
            await asyncio.wait(running, timeout=max(0.0, seconds))

    async def any_late(self, seconds: float) -> None:
        """Sleep, until the time is over or a query under way ends."""
        running = self._running()
        if running:
            await asyncio.wait(running, timeout=max(0.0, seconds), return_when=asyncio.FIRST_COMPLETED)
        else:
            await asyncio.sleep(max(0.0, seconds))

    def _running(self) -> list[asyncio.Task[Fetched]]:
        return [running for poller in self._pollers.values() if (running := poller.running) is not None]

    def take(self) -> dict[SignalKey, Fetched]:
        """Every answer that is here and was not used before."""
        return {key: fetched for key, poller in self._pollers.items() if (fetched := poller.take()) is not None}

    def slowest(self) -> float:
        """Seconds the slowest of the last good answers took."""
        return max((poller.took for poller in self._pollers.values()), default=0.0)

    async def close(self) -> None:
        """Give up everything."""
        await self.use(())


def answers(policy: SourceLoadPolicy, taken: Mapping[SignalKey, Fetched], now: float) -> tuple[Answer, ...]:
    """A policy's part of what was taken, in the order of its signals."""
    return tuple(_answer(taken.get((policy.prometheus, signal)), now) for signal in policy.signals)


def _answer(fetched: Fetched | None, now: float) -> Answer:
    if fetched is None:
        return Answer(None, "no_answer")
    if fetched.index is None:
        return Answer(None, "signal_error")
    return Answer(fetched.index, since=now - fetched.at)
