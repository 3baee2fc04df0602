"""Conditions of a policy's status: what is shown turns only when several cycles agree.

Pure. The cycles' own answers come in a PolicyReport; decisions about writes never wait for what is shown here.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from mx_operator.core.reports import Check, PolicyReport
from mx_operator.kubernetes.times import parse_time

#: Cycles in a row that have to say the same before a condition turns: one missed scrape turns nothing.
CYCLES: Final = 3

READY: Final = "Ready"
PROMETHEUS: Final = "PrometheusReachable"
SERVER: Final = "ServerReachable"
SUPPORTED: Final = "LoadSupported"
FRESH: Final = "DataFresh"
HEARTBEAT: Final = "HeartbeatMatches"
UNCONFLICTED: Final = "Unconflicted"
#: In the order they are shown: the summary, then what it sums up, most basic first.
ORDER: Final = (READY, PROMETHEUS, SERVER, SUPPORTED, FRESH, HEARTBEAT, UNCONFLICTED)


class Truth(enum.Enum):
    """The three values of a Kubernetes condition's status."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


_TRUTH: Final = MappingProxyType({True: Truth.TRUE, False: Truth.FALSE, None: Truth.UNKNOWN})


@dataclasses.dataclass(frozen=True, slots=True)
class Condition:
    """One condition as it is shown.

    Attributes:
        kind: Its `type`.
        since: Unix seconds of its last turn (`lastTransitionTime`).
        against: How many cycles in a row have said `pending` instead.
    """

    kind: str
    truth: Truth
    reason: str
    message: str
    since: float
    pending: Truth | None = None
    against: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Conditions:
    """The conditions of one policy, by type."""

    by_kind: Mapping[str, Condition] = dataclasses.field(default_factory=dict)

    def is_false(self, kind: str) -> bool:
        """Whether this one is there and False."""
        return kind in self.by_kind and self.by_kind[kind].truth is Truth.FALSE

    def in_order(self) -> list[Condition]:
        """The known ones, in the order they are shown."""
        return [self.by_kind[kind] for kind in ORDER if kind in self.by_kind]


def stored(status: object) -> Conditions:
    """The conditions of a status as the API server has it; whatever cannot be read is left out."""
    entries = status.get("conditions") if isinstance(status, Mapping) else None
    read = [_entry(entry) for entry in entries] if isinstance(entries, list) else []
    return Conditions({condition.kind: condition for condition in read if condition is not None})


def _entry(entry: Any) -> Condition | None:
    try:
        since = parse_time(entry["lastTransitionTime"])
        return Condition(entry["type"], Truth(entry["status"]), entry["reason"], entry.get("message", ""), since)
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def after(shown: Conditions, report: PolicyReport, observing: bool) -> Conditions:
    """What is shown once this cycle's report is in.

    Args:
        shown: What was shown before.
        report: Of one cycle; the next call takes the next cycle's.
        observing: The policy is in mode observe.
    """
    checks = {
        PROMETHEUS: report.prometheus,
        SERVER: report.server,
        SUPPORTED: report.load_supported,
        FRESH: report.data_fresh,
        HEARTBEAT: report.heartbeat,
        UNCONFLICTED: _conflict(report),
    }
    parts = {kind: _turned(shown.by_kind.get(kind), kind, check, report.at) for kind, check in checks.items()}
    ready = _settled(shown.by_kind.get(READY), READY, _ready(parts, report, observing), report.at)
    return Conditions({READY: ready, **parts})


def refused(shown: Conditions, message: str, at: float) -> Conditions:
    """What is shown of a policy whose spec cannot be used: not ready, and nothing else is known."""
    ready = _settled(shown.by_kind.get(READY), READY, Check(False, "InvalidSpec", message), at)
    return Conditions({READY: ready})


def differ(before: Conditions, now: Conditions) -> bool:
    """Whether what is shown is no longer what is stored: a turn, or the first word on something unknown."""
    return {kind: each.truth for kind, each in before.by_kind.items()} != {
        kind: each.truth for kind, each in now.by_kind.items()
    }


def turns(before: Conditions, now: Conditions) -> list[Condition]:
    """The conditions that turned between two states, in their order; good news about the unknown is none."""
    return [condition for condition in now.in_order() if _turned_news(before.by_kind.get(condition.kind), condition)]


def _turned_news(before: Condition | None, now: Condition) -> bool:
    if before is None or before.truth is Truth.UNKNOWN:
        return now.truth is Truth.FALSE
    return before.truth is not now.truth and now.truth is not Truth.UNKNOWN


def _turned(old: Condition | None, kind: str, check: Check, at: float) -> Condition:
    """One more cycle's answer: it is shown at once if it agrees or is the first good news, else when it lasts."""
    truth = _TRUTH[check.ok]
    if old is None:
        old = Condition(kind, Truth.UNKNOWN, "Starting", "no cycle has ended yet", at)
    if truth is old.truth or (old.truth is Truth.UNKNOWN and truth is Truth.TRUE):
        return _settled(old, kind, check, at)
    against = old.against + 1 if old.pending is truth else 1
    if against >= CYCLES:
        return _settled(old, kind, check, at)
    return dataclasses.replace(old, pending=truth, against=against)


def _settled(old: Condition | None, kind: str, check: Check, at: float) -> Condition:
    truth = _TRUTH[check.ok]
    since = old.since if old is not None and old.truth is truth else at
    return Condition(kind, truth, check.reason or truth.value, check.message, since)


def _conflict(report: PolicyReport) -> Check:
    lost = report.counts.conflicting
    if not lost:
        return Check(True, "NoConflict")
    message = f"{lost} of {report.counts.listed} sources belong to a policy with precedence; change priority or models"
    return Check(False, "Conflict", message)


def _ready(parts: Mapping[str, Condition], report: PolicyReport, observing: bool) -> Check:
    """The summary: the first thing in the way, or what the policy does."""
    counts = report.counts
    for kind in (SERVER, PROMETHEUS, SUPPORTED, FRESH):
        part = parts[kind]
        if part.truth is Truth.FALSE:
            return Check(False, part.reason, part.message)
    if counts.listed and counts.conflicting == counts.listed and parts[UNCONFLICTED].truth is Truth.FALSE:
        return Check(False, "Conflict", parts[UNCONFLICTED].message)
    if parts[SERVER].truth is Truth.TRUE and not counts.listed:
        return Check(True, "NoSources", "the server lists no READY source that this policy means")
    unknown = [kind for kind in (SERVER, PROMETHEUS, FRESH) if parts[kind].truth is Truth.UNKNOWN]
    if unknown:
        return Check(None, parts[unknown[0]].reason, parts[unknown[0]].message)
    measured = f"{counts.matched} of {counts.listed} sources measured"
    return Check(True, "Observing" if observing else "Writing", measured)
