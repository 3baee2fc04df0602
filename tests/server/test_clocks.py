"""Clocks that jump and clocks that differ: nobody is READY for ever, and the living are back with their next heartbeat.

On Redis the only clock is Redis' own, and cannot be moved here; the rules are the same code (test_rules).
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import AsyncIterator, Callable

import pytest

from mx_server.app import Server
from mx_server.backends import Backend
from mx_server.backends.kubernetes import KubernetesBackend
from mx_server.backends.memory import MemoryBackend
from mx_server.clocks import ServerClock, wall
from mx_server.kube_client import KubeClient
from mx_server.reaper import Reaper
from mx_server.settings import Settings
from mx_server.telemetry import Telemetry
from mx_wire import aio_channel, aio_stub
from tests.server.conftest import READY, STALE, Peer

HOUR = 3_600_000
TIMEOUT = 90_000
SETTINGS = Settings(listen="127.0.0.1:0", reaper_interval=3600)

Open = Callable[[Callable[[], int]], Backend]


@pytest.fixture(params=["memory", pytest.param("kubernetes", marks=pytest.mark.tools("etcd", "kube-apiserver"))])
def opens(request: pytest.FixtureRequest) -> Open:
    """Opens a backend with a clock of the test's."""
    if request.param == "memory":
        return MemoryBackend
    place = request.getfixturevalue("namespace")
    return lambda clock: KubernetesBackend(KubeClient(place), place.namespace, clock)


@dataclasses.dataclass
class Clock:
    """Milliseconds that a test moves."""

    now: int = 1_790_000_000_000

    def __call__(self) -> int:
        return self.now


def _off_by(milliseconds: int) -> Callable[[], int]:
    return lambda: wall() + milliseconds


@contextlib.asynccontextmanager
async def _peer(backend: Backend) -> AsyncIterator[Peer]:
    async with Server(SETTINGS, backend) as server, aio_channel(server.address) as channel:
        yield Peer(aio_stub(channel))


@pytest.mark.parametrize("jump", [-HOUR, HOUR])
async def test_after_a_jump_the_living_are_back_with_a_heartbeat_and_the_dead_never(opens: Open, jump: int) -> None:
    clock = Clock()
    backend = opens(clock)
    reaper = Reaper(backend, Telemetry("test"), TIMEOUT, 10 * HOUR, 3600)
    async with _peer(backend) as peer:
        source_id = await peer.ready("alive", load=0.5)
        await peer.ready("dead", load=0.5)
        clock.now += jump
        assert await peer.ids(READY) == []
        assert (await peer.update(source_id, "alive", load=0.25)).success
        assert await peer.loads(READY) == {"alive": 0.25}
        await reaper.scan()
        assert await peer.loads(READY) == {"alive": 0.25}
        assert await peer.ids(STALE) == ["dead"]
        for _ in range(4):
            clock.now += 30_000
            assert (await peer.update(source_id, "alive", load=0.25)).success
            assert await peer.ids(READY) == ["alive"]
        await reaper.scan()
        assert await peer.ids(STALE) == ["dead"]


@pytest.mark.tools("etcd", "kube-apiserver")
async def test_replicas_whose_clocks_differ_by_seconds_list_the_same(request: pytest.FixtureRequest) -> None:
    place = request.getfixturevalue("namespace")
    right, ahead = Clock(), Clock()
    ahead.now += 5000
    backends = [KubernetesBackend(KubeClient(place), place.namespace, clock) for clock in (right, ahead)]
    async with _peer(backends[0]) as one, _peer(backends[1]) as two:
        source_id = await two.ready("w1", load=0.5)
        await two.ready("w2", load=0.5)
        for step in range(6):
            # Every other heartbeat carries a stamp that is older than the stored one, and counts.
            assert (await (one, two)[step % 2].update(source_id, "w1", load=step / 8)).success
            for peer in (one, two):
                assert (await peer.loads(READY))["w1"] == step / 8
            right.now += 10_000
            ahead.now += 10_000
        assert await one.ids(READY) == await two.ids(READY)


@pytest.mark.tools("etcd", "kube-apiserver")
async def test_a_replica_whose_clock_is_far_off_goes_by_the_clusters(request: pytest.FixtureRequest) -> None:
    place = request.getfixturevalue("namespace")
    clients = [KubeClient(place, clock=_off_by(off)) for off in (0, 100_000, -HOUR)]
    backends = [KubernetesBackend(client, place.namespace) for client in clients]
    for backend in backends:
        await backend.check()
    async with _peer(backends[0]) as right, _peer(backends[1]) as ahead, _peer(backends[2]) as behind:
        peers = (right, ahead, behind)
        source_id = await right.ready("w1", load=0.5)
        for writer in peers:
            assert (await writer.update(source_id, load=0.25)).success
            (row,) = (await right.listing(READY)).instances
            assert abs(row.updated_at - wall()) < 4000
            for backend in backends:
                await Reaper(backend, Telemetry("test"), TIMEOUT, HOUR, 3600).scan()
            for peer in peers:
                assert await peer.loads(READY) == {"w1": 0.25}


def test_a_servers_date_corrects_what_can_be_told_from_it() -> None:
    local = Clock(1_790_000_000_000)
    clock = ServerClock(local)
    there = "Mon, 21 Sep 2026 14:13:20 GMT"
    clock.saw(there)
    assert clock.correction == 0, "half a second of difference may be the date's missing fraction"
    for off in (100_000, -100_000):
        local.now = 1_790_000_000_000 + off
        clock.saw("")
        clock.saw(there)
        assert abs(clock() - 1_790_000_000_000) <= 500
    for nonsense in ("", "yesterday", "Mon, 99 Sep 2026 14:13:20 GMT"):
        clock.saw(nonsense)
        assert abs(clock() - 1_790_000_000_000) <= 500
