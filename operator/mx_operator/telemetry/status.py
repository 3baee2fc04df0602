"""The status of policies that are no custom resources: turns in the log, the last reports over HTTP."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from typing import Any, Final

from mx_operator.core.reports import Check, PolicyReport

_LOG: Final = logging.getLogger(__name__)
#: Cycles in a row that have to say the same before it is worth a line.
_CYCLES: Final = 3
_WORDS: Final = {True: "yes", False: "no", None: "unknown"}


@dataclasses.dataclass(slots=True)
class _Shown:
    ok: bool | None = None
    pending: bool | None = None
    against: int = 0


class StatusLog:
    """A `ports.StatusSink` for file mode."""

    def __init__(self) -> None:
        self._latest: dict[str, PolicyReport] = {}
        self._shown: dict[tuple[str, str], _Shown] = {}

    def publish(self, report: PolicyReport) -> None:
        """Take the report of a cycle."""
        self._latest[report.policy] = report
        for name, check in checks(report).items():
            self._look(report.policy, name, check)

    def keep(self, policies: set[str]) -> None:
        """Forget everybody else."""
        self._latest = {name: report for name, report in self._latest.items() if name in policies}
        self._shown = {key: shown for key, shown in self._shown.items() if key[0] in policies}

    def _look(self, policy: str, name: str, check: Check) -> None:
        shown = self._shown.setdefault((policy, name), _Shown())
        if check.ok is shown.ok or check.ok is None:
            shown.against = 0
            return
        shown.against = shown.against + 1 if shown.pending is check.ok else 1
        shown.pending = check.ok
        if shown.against < _CYCLES and not (shown.ok is None and check.ok):
            return
        shown.ok, shown.against = check.ok, 0
        level = logging.INFO if check.ok else logging.WARNING
        _LOG.log(level, "policy %s: %s: %s (%s: %s)", policy, name, _WORDS[check.ok], check.reason, check.message)

    def document(self) -> dict[str, Any]:
        """The last report of every policy, for `/status`."""
        return {name: as_document(report) for name, report in sorted(self._latest.items())}


def checks(report: PolicyReport) -> Mapping[str, Check]:
    """A report's conditions under their names in the resource's status."""
    return {
        "ServerReachable": report.server,
        "PrometheusReachable": report.prometheus,
        "LoadSupported": report.load_supported,
        "DataFresh": report.data_fresh,
        "HeartbeatMatches": report.heartbeat,
    }


def as_document(report: PolicyReport) -> dict[str, Any]:
    """A report as JSON."""
    return {
        "observedGeneration": report.generation,
        "reportedAt": report.at,
        "conditions": {
            name: {"status": _WORDS[check.ok], "reason": check.reason, "message": check.message}
            for name, check in checks(report).items()
        },
        "sources": dataclasses.asdict(report.counts),
        "skips": dict(report.skips),
        "signalAges": {name: round(age, 3) for name, age in report.signal_ages.items()},
        "staleRatio": report.stale_ratio,
        "heartbeatInterval": report.heartbeat_interval,
        "cycleSeconds": round(report.duration, 6),
    }
