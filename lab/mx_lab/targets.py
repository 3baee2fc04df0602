"""The targets' side: each start lists and ranks through the selector, and pulls from the first."""

from __future__ import annotations

import asyncio
import concurrent.futures
import dataclasses
import random
import time

import mx_selector
import mx_wire
from mx_lab.fleet import MODEL, Fleet
from mx_lab.settings import POLICIES, Settings
from mx_lab.sources import ACCELERATOR, IDENTITY
from mx_lab.traffic import Nic, Pull


@dataclasses.dataclass(frozen=True)
class Choice:
    """The first choice of one target under one policy; `source` is None where nothing could be chosen."""

    policy: str
    source: str | None
    at: float


@dataclasses.dataclass(frozen=True)
class Transfer:
    """One pull that ended."""

    policy: str
    source: str
    seconds: float


class Targets:
    """Starts targets until all have started, and keeps what they chose and how long they pulled."""

    def __init__(self, settings: Settings, fleet: Fleet, nics: dict[str, Nic], server: str) -> None:
        self._settings, self._nics = settings, nics
        self._names = {source.worker_id: source.name for source in fleet}
        self._channel = mx_wire.channel(server)
        self._stub = mx_wire.P2pServiceStub(self._channel)
        self._random = random.Random(settings.seed)
        self._ended: dict[int, asyncio.Future[float]] = {}
        # Threads of their own: a listing that hangs must not hold up the world's clock.
        self._threads = concurrent.futures.ThreadPoolExecutor(4, "target")
        self.choices: list[Choice] = []
        self.transfers: list[Transfer] = []
        self.errors: list[str] = []

    async def run(self) -> None:
        """Start them all, evenly spread but for a little chance, and wait for the last pull."""
        begin, step = time.monotonic(), self._settings.duration / self._settings.starts
        async with asyncio.TaskGroup() as group:
            for number in range(self._settings.starts):
                at = begin + (number + self._random.random()) * step
                await asyncio.sleep(max(0.0, at - time.monotonic()))
                group.create_task(self._start(number))

    async def _start(self, number: int) -> None:
        target = mx_selector.Target(MODEL, f"{self._random.getrandbits(32):08x}", 0, ACCELERATOR)
        pulls_under = POLICIES[number % len(POLICIES)]
        for policy in POLICIES:
            selection = await asyncio.get_running_loop().run_in_executor(self._threads, self._select, target, policy)
            source = self._names.get(selection[0].worker_id) if selection else None
            self.choices.append(Choice(policy, source, time.monotonic()))
            if selection.error:
                self.errors.append(selection.error)
            if policy == pulls_under and source is not None:
                with selection.attempt(selection[0]):
                    self.transfers.append(Transfer(policy, source, await self._pull(source)))

    def _select(self, target: mx_selector.Target, policy: str) -> mx_selector.Selection:
        return mx_selector.select_sources(self._stub, IDENTITY, target, policy=policy, timeout=5)

    async def _pull(self, source: str) -> float:
        pull = Pull(self._settings.weights, time.monotonic())
        ended: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._ended[id(pull)] = ended
        self._nics[source].pulls.append(pull)
        return await ended

    def pulls_ended(self, pulls: list[Pull]) -> None:
        """Told by whoever advances the NICs."""
        for pull in pulls:
            assert pull.ended is not None
            self._ended.pop(id(pull)).set_result(pull.ended - pull.started)

    def close(self) -> None:
        """Close the channel."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._channel.close()
