"""Prometheus, the MX server and the operator are killed in turn, under load, again and again.

Beside them stands an uninterrupted fleet with the same loads: after each recovery both servers store the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pathlib
import random
import socket
import sys
import time
from collections.abc import AsyncIterator

import pytest
import yaml

import mx_wire
from mx_lab.processes import Process
from mx_operator.core.marks import mark, nonce_of
from mx_operator.core.rules import WRITE_BUDGET
from tests.operator.parts.fleet import Forwarder, Loads, Sources, forwarding, serving_page
from tests.parts import prometheus as parts
from tests.parts.redis import RedisServer

LONG = os.environ.get("MX_TEST_LONG") == "1"
ROUNDS = 20 if LONG else 2
SOURCES, HEARTBEAT, STALE_AFTER = 6, 5.0, 8.0
#: A sample was fresh when the query was answered; the answer took its timeout at most, the write its budget, and the
#: forwarder's note of it a moment on a busy machine.
TIMEOUT = 1.0
LATE = TIMEOUT + WRITE_BUDGET + 0.5
BIN = pathlib.Path(sys.executable).parent


def steady_port() -> int:
    """A free port below those that systems hand out, so that nobody else gets it while its server is down."""
    while True:
        port = random.randrange(15_000, 32_000)
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port


class Stack:
    """Prometheus, server and operator as processes; each can be killed and started again where it was."""

    def __init__(self, folder: pathlib.Path, page: int, binary: pathlib.Path, backend: list[str]) -> None:
        folder.mkdir(parents=True)
        self.folder, self._page, self._binary, self._backend = folder, page, binary, backend
        self.server_port, self.prometheus_port = steady_port(), steady_port()
        self._ends = dict[str, contextlib.ExitStack]()
        self._processes = dict[str, Process]()

    def start(self, what: str) -> None:
        self._ends[what] = contextlib.ExitStack()
        self._processes[what] = getattr(self, f"_{what}")(self._ends[what])

    def kill(self, what: str) -> None:
        self._processes[what].kill()
        self._ends.pop(what).close()

    def close(self) -> None:
        for what in list(self._ends):
            self.kill(what)

    def _prometheus(self, end: contextlib.ExitStack) -> Process:
        made = parts.prometheus(
            self.folder / "prometheus",
            {"exporter": [f"127.0.0.1:{self._page}"]},
            binary=self._binary,
            port=self.prometheus_port,
        )
        process = end.enter_context(made).process
        assert process is not None
        return process

    def _server(self, end: contextlib.ExitStack) -> Process:
        command: list[str | pathlib.Path] = [BIN / "mx-server", "--listen", f"127.0.0.1:{self.server_port}"]
        process = end.enter_context(Process("server", [*command, *self._backend], self.folder / "server.log"))
        count = process.output.count("listening")
        process.wait_ready(lambda: process.output.count("listening") > count)
        return process

    def _operator(self, end: contextlib.ExitStack) -> Process:
        command: list[str | pathlib.Path] = [BIN / "mx-operator", "run", "--policy", self.folder / "policy.yaml"]
        command += ["--listen", "127.0.0.1:0"]
        return end.enter_context(Process("operator", command, self.folder / "operator.log"))

    def write_policy(self, server: str) -> None:
        spec = {
            "server": {"address": server},
            "prometheus": {
                "url": f"http://127.0.0.1:{self.prometheus_port}",
                "scrapeInterval": "1s",
                "timeout": f"{TIMEOUT:g}s",
            },
            "signals": [{"name": "load", "query": "mx_source_load"}],
            "interval": "1s",
            "sourceHeartbeat": f"{HEARTBEAT:g}s",
            "staleAfter": f"{STALE_AFTER:g}s",
        }
        policy = {"apiVersion": "sourceload.dev/v1alpha1", "kind": "SourceLoadPolicy", "metadata": {"name": "p"}}
        (self.folder / "policy.yaml").write_text(yaml.safe_dump({**policy, "spec": spec}))


@contextlib.asynccontextmanager
async def fleet(stack: Stack) -> AsyncIterator[tuple[Forwarder, Sources]]:
    """Everything of one stack, with what is written recorded."""
    for what in ("prometheus", "server"):
        stack.start(what)
    try:
        async with mx_wire.aio_channel(f"127.0.0.1:{stack.server_port}") as channel:
            stub = mx_wire.aio_stub(channel)
            sources = Sources(stub, SOURCES, HEARTBEAT)
            await sources.publish()
            living = asyncio.create_task(sources.live())
            async with forwarding(stub) as (forwarder, address):
                stack.write_policy(address)
                stack.start("operator")
                try:
                    yield forwarder, sources
                finally:
                    living.cancel()
    finally:
        stack.close()


async def same(one: Sources, other: Sources, expected: dict[str, float], seconds: float) -> None:
    """Wait until both servers have stored what is true of every source.

    Not all at one moment: each source's heartbeat takes its load away until the operator's next cycle. But what was
    right once is never wrong again.
    """
    end = time.monotonic() + seconds
    waiting = {(server, worker) for server in (0, 1) for worker in expected}
    while waiting:
        assert time.monotonic() < end, f"{sorted(waiting)} never were as in {expected}"
        for server, sources in enumerate((one, other)):
            for worker, load in (await sources.stored()).items():
                if load == expected[worker]:
                    waiting.discard((server, worker))
                else:
                    assert load is None or (server, worker) in waiting, f"{worker} was right and is {load}"
        await asyncio.sleep(0.1)


def check_writes(forwarder: Forwarder, loads: Loads) -> None:
    """Every write is READY, in range, marked, and of a sample that was fresh."""
    for at, worker, status, load in forwarder.written:
        assert status == mx_wire.SourceStatus.SOURCE_STATUS_READY
        assert load is not None
        assert 0.0 <= load <= 1.0
        assert nonce_of(load) is not None
        assert mark(load, 0) in loads.lately(int(worker.removeprefix("worker")), at - STALE_AFTER - LATE)


@pytest.mark.timeout(900 if LONG else 120)
@pytest.mark.parametrize("prometheus_binary", ["debian", "3"] if LONG else ["debian"], indirect=True)
async def test_killed_in_turn_everything_is_as_if_nothing_had_happened(
    tmp_path: pathlib.Path, redis: RedisServer, prometheus_binary: pathlib.Path
) -> None:
    rnd = random.Random(7)
    loads = Loads(SOURCES)
    with serving_page(loads) as page:
        victim = Stack(tmp_path / "victim", page, prometheus_binary, ["--backend", "redis", "--redis-url", redis.url])
        control = Stack(tmp_path / "control", page, prometheus_binary, ["--backend", "memory"])
        async with fleet(control) as (_, steady), fleet(victim) as (forwarder, shaken):
            await same(shaken, steady, {f"worker{n}": mark(0.5, 0) for n in range(SOURCES)}, 25)
            for turn in range(ROUNDS):
                whom = ("both", "server", "operator", "prometheus")[turn % 4]
                await shake(victim, whom, loads, rnd, forwarder)
                for n in range(SOURCES):  # far from what is stored, so that both write this very sample
                    loads.turn(n, round((loads.now[n] + 0.3 + 0.3 * rnd.random()) % 0.95, 3))
                await same(shaken, steady, {f"worker{n}": mark(loads.now[n], 0) for n in range(SOURCES)}, 30)
    check_writes(forwarder, loads)


async def shake(victim: Stack, whom: str, loads: Loads, rnd: random.Random, forwarder: Forwarder) -> None:
    """Kill and start again while loads move; `both`: the operator is restarted while Prometheus is away."""
    killed = ["prometheus", "operator"] if whom == "both" else [whom]
    for what in killed:
        victim.kill(what)
    for _ in range(4):
        loads.turn(rnd.randrange(SOURCES), round(rnd.random(), 3))
        await asyncio.sleep(0.3)
    for what in reversed(killed):
        victim.start(what)
        if whom == "both" and what == "operator":
            # KEDA #6961: after a crash in an outage it came up and acted on nothing.
            count = len(forwarder.written)
            await asyncio.sleep(2.5)
            assert len(forwarder.written) == count, "without a sample there is no write"
