"""What is known of each target after each attempt, and what that means for its pod: pure decisions."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from mx_exporter.engines import frozen
from mx_exporter.engines.readings import PageReadings, Reading
from mx_exporter.engines.settings import ScrapeSettings
from mx_exporter.engines.status import ScrapeStatus
from mx_exporter.engines.targets import Plan, Target
from mx_exporter.model import Pod, Usage

#: A busy engine does these now and then: its last reading stands until it is too old. Any other failure ends it.
PASSING = frozenset({"timeout", "reset", "truncated", "empty", "http_status"})

#: What a port answers that is not an engine's.
_NO_ENGINE = frozenset({"no_gauge", "not_found", "not_metrics", "not_http", "redirect", "refused"})

#: From what says most of a pod to what says least, where none of its targets shows a gauge.
_TELLING = (
    "too_large", "too_many_series", "unreadable", "json", "encoding", "tls", "truncated", "empty", "http_status",
    "redirect", "not_metrics", "not_http", "timeout", "reset", "no_gauge", "not_found", "unreachable", "refused",
    "pending",
)  # fmt: skip


@dataclasses.dataclass(frozen=True, slots=True)
class State:
    """What is known of one target."""

    readings: tuple[Reading, ...] = ()
    read_at: float | None = None  # when the page of these readings was read
    still: frozen.Still = dataclasses.field(default_factory=dict)
    failures: int = 0  # attempts in a row
    reason: str | None = "pending"  # of the last failure; None after a good attempt
    duration: float = 0.0
    ended: float = 0.0
    bad_lines: int = 0  # of the last page
    all_bad_lines: int = 0  # of all pages so far
    path: str | None = None  # the one that showed gauges last
    json_paths: frozenset[str] = frozenset()  # asking these again would drain somebody's statistics

    def paths(self, target: Target) -> tuple[str, ...]:
        """The paths to ask, in order."""
        if self.path is not None:
            return (self.path,)
        return tuple(path for path in target.paths if path not in self.json_paths) or target.paths


def good(state: State, path: str, page: PageReadings, overlong: int, began: float, now: float) -> State:
    """The state after a page with gauges, `overlong` wanted lines of which were too long to keep."""
    return dataclasses.replace(
        state,
        readings=page.readings,
        read_at=now,
        still=frozen.observe(state.still, page.readings, now),
        failures=0,
        reason=None,
        duration=now - began,
        ended=now,
        bad_lines=page.bad_lines + overlong,
        all_bad_lines=state.all_bad_lines + page.bad_lines + overlong,
        path=path,
    )


def failed(state: State, reasons: Mapping[str, str], began: float, now: float, bad_lines: int = 0) -> State:
    """The state after an attempt in which every path failed, each for its reason, with so many unreadable lines.

    The path that worked is given up where it is gone for good, so that the usual ones are tried again.
    """
    reason = _most_telling(reasons.values())
    json_paths = state.json_paths | {path for path, why in reasons.items() if why == "json"}
    if reason in ("not_found", "no_gauge") and json_paths:
        reason = "json"
    if reason == "refused":
        json_paths = frozenset()  # who listens there next may be another
    return dataclasses.replace(
        state,
        failures=state.failures + 1,
        reason=reason,
        duration=now - began,
        ended=now,
        bad_lines=bad_lines,
        all_bad_lines=state.all_bad_lines + bad_lines,
        path=state.path if reason in PASSING else None,
        json_paths=json_paths,
    )


def usages(
    plan: Plan, states: Mapping[Target, State], settings: ScrapeSettings, now: float
) -> dict[Pod, tuple[Usage, ...]]:
    """What every pod of the plan says now: each engine and rank once, whatever number of its ports show it.

    Returns:
        For every pod at least one usage. One without an engine's name says why nothing is known of the pod.
    """
    of_pod: dict[Pod, list[State]] = collections.defaultdict(list)
    for target in plan.targets:
        of_pod[target.pod].append(states.get(target, State()))
    found = {pod: _of_pod(own, settings, now) for pod, own in of_pod.items()}
    return found | {pod: (Usage("", "", None, reason, now),) for pod, reason in plan.refused.items()}


def statuses(plan: Plan, states: Mapping[Target, State]) -> tuple[ScrapeStatus, ...]:
    """How the last attempt at every target of the plan went, of those that were tried and may be an engine's.

    Of a pod whose engine is found, ports that never showed one (a sidecar's, one that was only guessed) are left out:
    they would be down for ever.
    """
    found = {target.pod for target in plan.targets if target in states and states[target].read_at is not None}
    tried = [
        (target, states[target])
        for target in plan.targets
        if target in states and not (target.pod in found and _no_engine(states[target]))
    ]
    return tuple(
        ScrapeStatus(t.pod, t.port, s.reason is None, s.duration, s.reason, s.ended, s.all_bad_lines) for t, s in tried
    )


def _no_engine(state: State) -> bool:
    return state.read_at is None and state.reason in _NO_ENGINE


def _of_pod(states: Sequence[State], settings: ScrapeSettings, now: float) -> tuple[Usage, ...]:
    best: dict[tuple[str, str], Usage] = {}
    for state in states:
        for usage in _of_target(state, settings, now):
            key = (usage.engine, usage.engine_index)
            best[key] = max(best.get(key, usage), usage, key=_rank)
    if best:
        return tuple(best[key] for key in sorted(best))
    reason = _most_telling(state.reason or "no_gauge" for state in states)
    return (Usage("", "", None, reason, max((state.ended for state in states), default=now)),)


def _rank(usage: Usage) -> tuple[bool, float, float]:
    """A known value before none, the larger one before the smaller: the busiest cache decides."""
    return usage.value is not None, usage.value or 0.0, usage.at


def _of_target(state: State, settings: ScrapeSettings, now: float) -> Iterable[Usage]:
    if state.read_at is None:
        return
    lost = _lost(state, settings, now)
    for reading in state.readings:
        judged = frozen.judge(state.still, reading, state.read_at, settings.freeze_after)
        value, reason = (None, lost) if lost else (judged.value, judged.reason)
        yield Usage(reading.engine, reading.index, value, reason, state.read_at)


def _lost(state: State, settings: ScrapeSettings, now: float) -> str | None:
    """Why the readings stand no longer; None while they do."""
    assert state.read_at is not None
    old = now - state.read_at > settings.keep_intervals * settings.interval + settings.timeout
    if state.reason is not None and (old or state.reason not in PASSING):
        return state.reason
    return "stale" if old else None


def _most_telling(reasons: Iterable[str]) -> str:
    return min(reasons, key=lambda reason: _TELLING.index(reason) if reason in _TELLING else -1, default="no_endpoint")
