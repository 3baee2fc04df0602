"""`mx-operator plan`: cycles that write nothing, and the table of what they would have written and why."""

from __future__ import annotations

import asyncio
import dataclasses
import sys
from collections.abc import Sequence
from typing import Any, Final

from mx_operator.core.planning import OBSERVE, Decision
from mx_operator.core.reports import PolicyReport
from mx_operator.loop.endpoints import Cycle, Endpoint, EndpointKey
from mx_operator.mx.making import make_server
from mx_operator.policies.spec import Mode, SourceLoadPolicy
from mx_operator.prometheus.clients import HttpSignal
from mx_operator.telemetry.status import checks

_FIRST_ANSWERS: Final = 10.0
#: Columns where the table goes into a file or a pipe.
_WIDE: Final = 200
_MARKS: Final = {True: "ok", False: "NOT OK", None: "unknown"}


class _Nobody:
    def publish(self, report: PolicyReport) -> None:
        """Nobody to tell."""

    def saw(self, endpoint: EndpointKey, cycle: Cycle, reports: Sequence[PolicyReport]) -> None:
        """Keep the last ones."""
        self.cycle, self.reports = cycle, reports

    def left(self, endpoint: EndpointKey) -> None:
        """Nothing is kept."""


async def show(policies: Sequence[SourceLoadPolicy], watch: float) -> int:
    """Run the cycles and print.

    Args:
        policies: All of a file.
        watch: Seconds of cycles before the one that is shown.

    Returns:
        0 where every server listed and every signal answered, else 1.

    Raises:
        mx_wire.ConfigurationError: A server's settings cannot be used.
    """
    endpoints: dict[EndpointKey, list[SourceLoadPolicy]] = {}
    for policy in policies:
        observed = dataclasses.replace(policy, mode=Mode.OBSERVE)
        endpoints.setdefault(EndpointKey.of(policy), []).append(observed)
    good = True
    for key, theirs in endpoints.items():
        good &= _print(key, *await _cycles(key, theirs, watch))
    return 0 if good else 1


async def _cycles(
    key: EndpointKey, policies: Sequence[SourceLoadPolicy], watch: float
) -> tuple[Cycle, Sequence[PolicyReport]]:
    seen = _Nobody()
    endpoint = Endpoint(key, make_server(key.server), HttpSignal, seen, seen)
    endpoint.use(policies)
    now = asyncio.get_running_loop().time
    end = now() + watch
    try:
        await endpoint.cycle()
        await endpoint.known(_FIRST_ANSWERS)
        while True:
            await endpoint.cycle()
            if now() >= end:
                return seen.cycle, seen.reports
            await asyncio.sleep(endpoint.interval)
    finally:
        await endpoint.close()


def _print(key: EndpointKey, cycle: Cycle, reports: Sequence[PolicyReport]) -> bool:
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else _WIDE)
    good = True
    for report in reports:
        console.print(f"[bold]{report.policy}[/bold] on {key.server.address}")
        for name, check in checks(report).items():
            console.print(f"  {name:20} {_MARKS[check.ok]:8} {check.reason}: {check.message}", markup=False)
        good &= report.server.ok is not False and report.prometheus.ok is not False
    if cycle.plan is not None:
        console.print(_table(cycle.plan.decisions, cycle))
    return good


def _table(decisions: Sequence[Decision], cycle: Cycle) -> Any:
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("policy", "model", "worker", "rank", "pod"):
        table.add_column(name)
    for name in ("stored", "measured", "age", "target"):
        table.add_column(name, justify="right")
    for name in ("decision", "reason"):
        table.add_column(name)
    for decision in decisions:
        row = decision.row
        identity = cycle.identities.get(row.key)
        would = decision.write or decision.reason == OBSERVE
        table.add_row(
            decision.policy,
            row.model_name,
            row.key.worker_id,
            str(row.worker_rank),
            (identity and (identity.pod_name or identity.host)) or "-",
            _number(row.load, 3),
            _number(decision.measured, 3),
            _number(decision.age, 1),
            _number(decision.target, 3),
            "write" if would else "skip",
            "differs by more than the deadband" if would else decision.reason or "no_reading",
        )
    return table


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
