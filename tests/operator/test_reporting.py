"""What a cycle's report says of the heartbeats it saw."""

from __future__ import annotations

import random

import pytest

from mx_operator.core.ledgers import Ledger
from mx_operator.core.memory import Memory, RowMemory
from mx_operator.core.model import Row, SourceKey
from mx_operator.core.planning import Decision, Plan
from mx_operator.core.rules import Rules
from mx_operator.core.targets import State
from mx_operator.loop.endpoints import Cycle
from mx_operator.loop.reporting import reports
from mx_operator.policies.spec import Prometheus, Server, Signal, SourceLoadPolicy

KEY = SourceKey("0123456789abcdef", "w")
POLICY = SourceLoadPolicy("p", Server("mx:8001"), Prometheus("http://prometheus"), (Signal("s", "q"),))


def cycle(*intervals: float) -> Cycle:
    row = Row(KEY, 0, "m", 1, None)
    ledger = Ledger(random.Random(1))
    ledger.memory = Memory({KEY: RowMemory(0, None, 1, 0.0, intervals=intervals)}, 0.0, 1)
    plan = Plan((), (Decision(row, "p", State.UNMATCHED, "no_series"),), ())
    return Cycle((POLICY,), 0.0, 0.1, None, (row,), plan, (), {}, {}, ledger, Rules())


@pytest.mark.parametrize(
    ("intervals", "ok"),
    [((), None), ((30.0, 30.1), True), ((29.0,), True), ((28.0,), False), ((35.5,), True), ((37.0,), False)],
)
def test_heartbeats_that_are_sooner_than_believed_or_much_later_are_said(
    intervals: tuple[float, ...], ok: bool | None
) -> None:
    (report,) = reports(cycle(*intervals), 0.0)
    assert report.heartbeat.ok is ok
    assert ok is not False or "MX_HEARTBEAT_INTERVAL_SECS" in report.heartbeat.message
