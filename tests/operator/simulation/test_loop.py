"""The loop itself on a virtual clock: the bounds of its decisions, with its own queries, pacing and sends."""

from __future__ import annotations

import asyncio
import os
import random
import time

import pytest

from mx_operator.core.joins import Index, index
from mx_operator.core.model import Identity, Row, Sample, SourceKey, Write
from mx_operator.core.reports import PolicyReport
from mx_operator.loop.endpoints import Endpoint, EndpointKey
from mx_operator.mx.errors import MxError
from mx_operator.policies.spec import Prometheus, Server, Signal, SourceLoadPolicy

KEY = SourceKey("0123456789abcdef", "w")
POLICY = SourceLoadPolicy("p", Server("mx:8001"), Prometheus("http://prometheus"), (Signal("s", "q"),))
TIMEOUT, DIES = 90.0, 200.0
SEEDS = range(40 if os.environ.get("MX_TEST_LONG") == "1" else 3)


class World:
    """A source, a server and a Prometheus in virtual time; an `MxServer` and a `SignalClient`."""

    def __init__(self, rnd: random.Random, write_latency: float, fails: float) -> None:
        self.rnd, self.latency, self.fails = rnd, write_latency, fails
        self.now = asyncio.get_running_loop().time
        self.load: float | None = None
        self.stamp = self.now()
        self.true, self.scraped, self.scraped_at = 0.5, 0.5, self.now()
        self.good = self.seen = 0

    @property
    def selectable(self) -> bool:
        return self.now() - self.stamp <= TIMEOUT

    async def beats(self) -> None:
        while self.now() < DIES:
            self.load, self.stamp = None, self.now()
            await asyncio.sleep(30 + self.rnd.uniform(-0.2, 0.2))

    async def jumps(self) -> None:
        while True:
            self.true = self.rnd.choice([0.1, 0.9]) + self.rnd.uniform(-0.1, 0.1)
            await asyncio.sleep(5 + self.rnd.expovariate(1 / 20))

    async def scrapes(self) -> None:
        while True:
            self.scraped, self.scraped_at = self.true, self.now()
            await asyncio.sleep(5)

    async def looks(self) -> None:
        while True:
            await asyncio.sleep(0.5)
            if 60 < self.now() < DIES:
                self.seen += 1
                self.good += abs((self.load or 0.0) - self.true) <= 0.15

    async def list_ready(self, deadline: float, worker_rank: int | None = None) -> list[Row]:
        await asyncio.sleep(0.02)
        if self.rnd.random() < self.fails:
            raise MxError("Unavailable", "now and then")
        if not self.selectable or worker_rank not in (None, 0):
            return []
        return [Row(KEY, 0, "m", round((1000 + self.stamp) * 1000), self.load)]

    async def identity(self, key: SourceKey) -> Identity | None:
        return Identity("10.0.0.7", 0)

    async def write(self, write: Write, deadline: float) -> bool | None:
        takes = self.rnd.expovariate(1 / self.latency)
        asyncio.get_running_loop().call_later(takes, self._store, write.load)
        await asyncio.sleep(min(takes, deadline))
        if takes > deadline:
            raise MxError("DeadlineExceeded", "held by the network")
        return None

    def _store(self, load: float) -> None:
        self.load, self.stamp = load, self.now()

    async def ask(self) -> Index:
        await asyncio.sleep(0.03)
        labels = {"k8s_pod_ip": "10.0.0.7"}
        return index(POLICY.signals[0], [Sample(labels, self.scraped, self.now() - self.scraped_at)])

    async def reconnect(self) -> None:
        pass

    async def close(self) -> None:
        pass


class AskWorld:
    """The world as a signal: its `close` is not the server's."""

    def __init__(self, world: World) -> None:
        self.ask = world.ask

    def close(self) -> None:
        pass


class Nobody:
    def publish(self, report: PolicyReport) -> None:
        pass

    def saw(self, *_: object) -> None:
        pass

    def left(self, *_: object) -> None:
        pass


async def lived(seed: int, latency: float = 0.1, fails: float = 0.0) -> tuple[float, float]:
    """Seconds a hung source stayed selectable, and the share of its life in which its stored load was true."""
    world = World(random.Random(seed), latency, fails)
    nobody = Nobody()
    rnd = random.Random(seed)
    endpoint = Endpoint(EndpointKey.of(POLICY), world, lambda *_: AskWorld(world), nobody, nobody, rnd=rnd)
    endpoint.use([POLICY])
    works = [world.beats(), world.jumps(), world.scrapes(), world.looks(), endpoint.run()]
    tasks = [asyncio.create_task(work) for work in works]
    try:
        await asyncio.sleep(DIES + 40)
        while world.selectable:  # noqa: ASYNC110 (virtual time)
            await asyncio.sleep(1)
        return world.now() - DIES, world.good / world.seen
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.looptime
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("latency", "fails", "true"), [(0.1, 0.0, 0.75), (0.7, 0.0, 0.5), (0.1, 0.3, 0.5)])
async def test_a_hung_source_is_gone_within_the_bound(seed: int, latency: float, fails: float, true: float) -> None:
    started = time.monotonic()
    gone, share = await lived(seed, latency, fails)
    assert gone <= TIMEOUT + 27 + 2 + 1  # looked at once a second
    assert share >= true
    assert time.monotonic() - started < 60, "the clock is virtual"
