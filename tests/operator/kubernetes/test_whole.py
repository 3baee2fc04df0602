"""The bridge with the load loops it feeds, on a real API server: conflicts, fifty policies."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from mx_operator.core.marks import is_marked
from mx_operator.kubernetes import Bridge, Rhythm
from mx_operator.loop.fleet import Fleet
from mx_operator.mx.making import make_server
from mx_operator.prometheus.clients import HttpSignal
from tests.operator.kubernetes.clusters import Cluster
from tests.operator.parts.mx import FakeMx, Source, serving
from tests.operator.parts.prometheus_http import Answering, fake_prometheus, vector
from tests.operator.parts.running import Recorder, until

pytestmark = pytest.mark.tools("etcd", "kube-apiserver")
HEARTBEAT = 5.0


def _by_query(answers: dict[str, dict[str, float]]) -> Answering:
    """Each signal's own values, told apart by a metric's name in the query."""

    def answer(form: dict[str, str], handler: Any) -> None:
        handler.say(vector(next(values for name, values in answers.items() if f"{name}\n" in form["query"])))

    return answer


def _spec(address: str, url: str, query: str, **more: Any) -> dict[str, Any]:
    return {
        "server": {"address": address},
        "prometheus": {"url": url, "timeout": "2s"},
        "signals": [{"name": "load", "query": query}],
        "interval": "1s",
        "sourceHeartbeat": "5s",
        **more,
    }


@contextlib.asynccontextmanager
async def _operator(cluster: Cluster) -> AsyncIterator[tuple[Bridge, Recorder]]:
    """The operator's parts as its door puts them together, with the service account's rights."""
    bridge = Bridge(access=cluster.access, rhythm=Rhythm(look=0.1, pause=0.2, longest=1.0), instance="mx-operator-0")
    recorder = Recorder()
    fleet = Fleet(make_server, HttpSignal, bridge, recorder)
    running = asyncio.create_task(bridge.run(fleet))
    try:
        yield bridge, recorder
        assert not running.done()
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        await fleet.close()


@contextlib.asynccontextmanager
async def _beating(fake: FakeMx, *sources: Source) -> AsyncIterator[None]:
    """The sources' own heartbeats."""

    async def beat() -> None:
        while True:
            for source in sources:
                fake.heartbeat(source)
            await asyncio.sleep(HEARTBEAT)

    beating = asyncio.create_task(beat())
    try:
        yield
    finally:
        beating.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await beating


def _about(load: float | None, expected: float) -> bool:
    return load is not None and is_marked(load) and abs(load - expected) < 0.01


async def test_of_two_policies_for_one_source_one_writes_and_the_other_says_so(cluster: Cluster) -> None:
    fake = FakeMx()
    source = fake.add(1)
    answers = _by_query({"high_load": {"10.0.0.1": 0.8}, "low_load": {"10.0.0.1": 0.3}})
    async with serving(fake) as address, _beating(fake, source), _operator(cluster):
        with fake_prometheus(answers) as prometheus:
            cluster.create("high", **_spec(address, prometheus.url, "high_load", priority=10))
            cluster.create("low", **_spec(address, prometheus.url, "low_load"))
            await until(lambda: _about(source.load, 0.8), "the high one's load", 30)
            await until(lambda: cluster.condition("low") == ("False", "Conflict"), "the low one's status", 30)
            assert cluster.condition("low", "Unconflicted") == ("False", "Conflict")
            assert cluster.get("low")["status"]["sources"]["conflicting"] == 1
            await until(lambda: cluster.condition("high") == ("True", "Writing"), "the high one's status", 30)
            assert cluster.condition("high", "Unconflicted") == ("True", "NoConflict")
            assert not [written for written in fake.writes if _about(written.load, 0.3)]

            cluster.edit("low", priority=20)
            await until(lambda: _about(source.load, 0.3), "the other's load after the change of priority", 30)
            await until(lambda: cluster.condition("high") == ("False", "Conflict"), "the other's status", 30)

            cluster.delete("low")
            await until(lambda: _about(source.load, 0.8), "the load of the one that is left", 30)
            await until(lambda: cluster.condition("high") == ("True", "Writing"), "its status", 30)


async def test_fifty_policies_in_one_process(cluster: Cluster) -> None:
    """Each for a model of its own, half of them on either of two servers; one of them is wrong."""
    first, second = FakeMx(), FakeMx()
    sources = [(first if n % 2 else second).add(n, model=f"model-{n:02}") for n in range(1, 51)]
    loads = {f"10.0.0.{n}": round(0.1 + 0.015 * n, 3) for n in range(1, 51)}
    servers = serving(first), serving(second)
    beating = _beating(first, *sources[0::2]), _beating(second, *sources[1::2])
    with fake_prometheus(_by_query({"the_load": loads})) as prometheus:
        async with servers[0] as one, servers[1] as two, beating[0], beating[1], _operator(cluster) as (_, recorder):
            mark = cluster.mark()
            for n in range(1, 51):
                only = {"include": [f"model-{n:02}"]}
                spec = _spec(one if n % 2 else two, prometheus.url, "the_load", models=only)
                cluster.create(f"policy-{n:02}", **spec)
            cluster.create("wrong", **_spec("nowhere.invalid:1", prometheus.url, "the_load"))

            def stored() -> bool:
                return all(_about(source.load, loads[f"10.0.0.{n}"]) for n, source in enumerate(sources, 1))

            await until(stored, "every source has its load", 60)
            names = [f"policy-{n:02}" for n in range(1, 51)]
            await until(lambda: all(cluster.condition(name) == ("True", "Writing") for name in names), "Ready", 60)
            assert {cluster.get(name)["status"]["measured"] for name in names} == {"1/1"}
            await until(lambda: (cluster.condition("wrong") or ("", ""))[0] == "False", "the wrong one", 60)
            asked = cluster.requests(mark)
    assert all(code < 400 for *_, code in asked)
    assert {one.ended - one.started < 5 for one in recorder.cycles} == {True}
