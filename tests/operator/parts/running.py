"""A fleet of loops that runs inside a test, and everything it reported."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from mx_operator.core.reports import PolicyReport
from mx_operator.loop.endpoints import Cycle, EndpointKey
from mx_operator.loop.fleet import Fleet
from mx_operator.mx.making import make_server
from mx_operator.policies.spec import Prometheus, Server, Signal, SourceLoadPolicy
from mx_operator.prometheus.clients import HttpSignal
from mx_operator.telemetry.metrics import Metrics

#: Heartbeats are three seconds apart in these tests, and cycles a tenth of a second.
HEARTBEAT = 3.0


@dataclasses.dataclass
class Recorder:
    """Sink and observer."""

    reports: list[PolicyReport] = dataclasses.field(default_factory=list)
    cycles: list[Cycle] = dataclasses.field(default_factory=list)
    metrics: Metrics = dataclasses.field(default_factory=Metrics)

    def publish(self, report: PolicyReport) -> None:
        self.reports.append(report)

    def saw(self, endpoint: EndpointKey, cycle: Cycle, reports: Sequence[PolicyReport]) -> None:
        self.cycles.append(cycle)
        self.metrics.saw(endpoint, cycle, reports)

    def left(self, endpoint: EndpointKey) -> None:
        self.metrics.left(endpoint)

    def of(self, policy: str) -> list[PolicyReport]:
        return [report for report in self.reports if report.policy == policy]

    @property
    def last(self) -> PolicyReport:
        return self.reports[-1]


def policy(address: str, url: str, name: str = "p", query: str = "mx_source_load", **changes: Any) -> SourceLoadPolicy:
    """A quick policy; `changes` are of the policy's own fields."""
    base = SourceLoadPolicy(
        name,
        Server(address),
        Prometheus(url, timeout=1.0),
        (Signal("s", query),),
        interval=0.1,
        source_heartbeat=HEARTBEAT,
    )
    return dataclasses.replace(base, **changes)


@contextlib.asynccontextmanager
async def running(
    *policies: SourceLoadPolicy, unsupported: Sequence[str] = ()
) -> AsyncIterator[tuple[Fleet, Recorder]]:
    """Run them until the context ends."""
    recorder = Recorder()
    fleet = Fleet(make_server, HttpSignal, recorder, recorder)
    fleet.apply(policies, unsupported)
    try:
        yield fleet, recorder
    finally:
        await fleet.close()


async def until(true: Callable[[], Any], what: str, seconds: float = 10.0) -> None:
    """Wait for it."""
    end = asyncio.get_running_loop().time() + seconds
    while not true():
        if asyncio.get_running_loop().time() > end:
            raise TimeoutError(f"{what}: not within {seconds:g} s")
        await asyncio.sleep(0.02)


async def cycles(recorder: Recorder, count: int) -> None:
    """Wait for so many more cycles."""
    goal = len(recorder.cycles) + count
    await until(lambda: len(recorder.cycles) >= goal, f"{count} cycles", 5.0 + count)
