"""The status of one policy: what it says, and when it is worth a request to the API server.

Pure: time comes in. One Board per policy; the bridge asks each board once a second what is due.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Final

from mx_operator.core.reports import Counts, PolicyReport
from mx_operator.kubernetes import conditions
from mx_operator.kubernetes.conditions import Condition
from mx_operator.kubernetes.registry import Known
from mx_operator.kubernetes.times import show_time
from mx_operator.policies import Mode, durations

#: Seconds between patches while nothing turns, so that `reportedAt` tells a running operator from a stopped one.
STEADY: Final = 60.0
#: News may come sooner, but not more often than this within STEADY: a thing that flaps must not flood the API.
BURST: Final = 6
#: Seconds between two patches at least, so that what a start brings to light comes in few of them.
GAP: Final = 3.0
_LONGEST: Final = 1000  # characters of a message; a condition's may have 32768


@dataclasses.dataclass(frozen=True, slots=True)
class Patch:
    """A status to store, what it was made of, and the turns it tells of."""

    name: str
    uid: str
    generation: int
    shown: conditions.Conditions
    status: dict[str, Any]
    turns: tuple[Condition, ...]


class Board:
    """What is known and what is stored of one policy's status."""

    def __init__(self, known: Known) -> None:
        self.known = known
        self._stored = known.shown
        self._stored_generation: int | None = None
        self._now = known.shown
        self._report: PolicyReport | None = None
        self._sent: list[float] = []
        self._refused_at = 0.0

    def take(self, report: PolicyReport) -> None:
        """A cycle has ended."""
        if report.generation == self.known.generation and self.known.policy is not None:
            self._report = report
            self._now = conditions.after(self._now, report, self.known.policy.mode is Mode.OBSERVE)

    def renew(self, known: Known, at: float) -> None:
        """The resource has another spec (or was refused by the validator)."""
        if (known.uid, known.generation) != (self.known.uid, self.known.generation):
            self._report = None
        self.known = known
        if known.errors:
            message = " | ".join(str(finding) for finding in known.errors)
            self._now = conditions.refused(self._now, message[:_LONGEST], at)
            self._refused_at = at

    def due(self, now: float) -> Patch | None:
        """The patch to send now, if any.

        Args:
            now: Seconds of a monotonic clock.
        """
        if self._report is None and not self.known.errors:
            return None
        turns = conditions.turns(self._stored, self._now)
        news = conditions.differ(self._stored, self._now) or self._stored_generation != self.known.generation
        recent = [sent for sent in self._sent if now - sent < STEADY]
        if recent and not (news and len(recent) < BURST and now - recent[-1] >= GAP):
            return None
        known = self.known
        return Patch(known.name, known.uid, known.generation, self._now, self._document(), tuple(turns))

    def sent(self, patch: Patch, now: float) -> None:
        """This patch is stored; there may be news since it was made."""
        self.held(now)
        self._stored, self._stored_generation = patch.shown, patch.generation

    def held(self, now: float) -> None:
        """The patch of the last `due` was refused: it counts as a request, so that it is not sent again and again."""
        self._sent = [*(sent for sent in self._sent if now - sent < STEADY), now]

    def _document(self) -> dict[str, Any]:
        known, report = self.known, self._report
        entries = [_condition(condition, known.generation) for condition in self._now.in_order()]
        warnings = [str(warning) for warning in known.warnings]
        common = {"observedGeneration": known.generation, "conditions": entries, "warnings": warnings}
        if report is None:
            return common | {"reportedAt": show_time(self._refused_at)}
        return common | _numbers(report)


def _condition(condition: Condition, generation: int) -> dict[str, Any]:
    return {
        "type": condition.kind,
        "status": condition.truth.value,
        "reason": condition.reason,
        "message": condition.message,
        "lastTransitionTime": show_time(condition.since),
        "observedGeneration": generation,
    }


def _numbers(report: PolicyReport) -> dict[str, Any]:
    """The rest of the status, without what is not known."""
    ages, interval = report.signal_ages, report.heartbeat_interval
    numbers = {
        "reportedAt": show_time(report.at),
        "measured": f"{report.counts.matched}/{report.counts.listed}",
        "dataAge": _short(max(ages.values())) if ages else None,
        "staleRatio": round(report.stale_ratio, 3),
        "heartbeatInterval": _short(interval) if interval is not None else None,
        "clockSkew": durations.show(abs(report.clock_skew)) if report.clock_skew is not None else None,
        "cycleDuration": durations.show(max(report.duration, 0.001)),
        "sources": _sources(report.counts),
        "skips": [{"reason": reason, "sources": count} for reason, count in sorted(report.skips.items()) if count],
        "signals": [{"name": name, "age": _short(age)} for name, age in sorted(ages.items())],
    }
    return {field: value for field, value in numbers.items() if value is not None}


def _short(seconds: float) -> str:
    """Whole seconds from one on: `6s`, `1m10s`; below it `300ms`."""
    return durations.show(round(seconds) if seconds >= 1 else max(seconds, 0.0))


def _sources(counts: Counts) -> dict[str, int]:
    return {_camel(field.name): getattr(counts, field.name) for field in dataclasses.fields(counts)}


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)
