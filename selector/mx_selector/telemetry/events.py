"""From what happened to what is recorded: pure functions, one per verb of the recorder."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from mx_selector import readings
from mx_selector.model import Funnel
from mx_selector.telemetry import families
from mx_selector.telemetry.families import Update

_OUTCOMES: Final = {"success": "success", "transfer_retry": "retry", "transfer_fallback": "fallback"}


@dataclasses.dataclass(frozen=True)
class Labels:
    """What every update needs beside its event: MX_METRICS_SCHEME, MX_METRICS_SOURCE_ID_LABEL, and a clock."""

    scheme: str = ""
    by_source: bool = False
    now: Callable[[], float] = time.time


def fell_back(labels: Labels, policy: str, reason: str) -> list[Update]:
    """A policy failed."""
    return [Update(families.FALLBACKS, (policy, labels.scheme, reason))]


def listed(labels: Labels, policy: str, result: str) -> list[Update]:
    """A listing was answered, or not."""
    return [Update(families.LIST_SOURCES, (policy, labels.scheme, result))]


def selected(labels: Labels, policy: str, funnel: Funnel, sources: Sequence[Any], seconds: float) -> list[Update]:
    """The funnel of one selection, its time, and what is known of the first source."""
    scheme = labels.scheme
    updates = listed(labels, policy, "ok" if funnel.listed else "empty")
    for stage, count in dataclasses.asdict(funnel).items():
        updates.append(Update(families.CANDIDATES, (policy, scheme, stage), count))
    if funnel.listed:
        updates.append(Update(families.SELECTION_SECONDS, (policy, scheme), seconds))
    return updates + chosen(labels, sources, policy) + _load_gauges(labels, sources)


def chosen(labels: Labels, ordered: Sequence[Any], policy: str) -> list[Update]:
    """Load and age of the source ranked first."""
    if not ordered:
        return []
    first, scheme = ordered[0], labels.scheme
    load = readings.load_of(first)
    if load is None:
        return [Update(families.CHOSEN_UNKNOWN, (policy, scheme))]
    updates = [Update(families.CHOSEN_LOAD, (policy, scheme), load)]
    if stamp := readings.stamp_of(first):
        age = max(0.0, labels.now() - stamp / 1000)
        updates.append(Update(families.CHOSEN_LOAD_AGE, (policy, scheme), age))
    return updates


def _load_gauges(labels: Labels, ordered: Sequence[Any]) -> list[Update]:
    family = families.SOURCE_LOADS if labels.by_source else families.SOURCE_LOAD
    updates = [Update(family, (), None)]
    for candidate in ordered if labels.by_source else ordered[:1]:
        load = readings.load_of(candidate)
        if load is not None:
            series = (labels.scheme, str(candidate.worker_id)) if labels.by_source else (labels.scheme,)
            updates.append(Update(family, series, load))
    return updates


def started(labels: Labels, version: str) -> list[Update]:
    """The process records from now on."""
    return [Update(families.BUILD_INFO, ("selector", version, labels.scheme), 1.0)]


def phase(labels: Labels, policy: str, name: str, outcome: str, seconds: float) -> list[Update]:
    """A phase of an attempt ended; one that is not among the known would spoil their sum and is left out."""
    if name not in families.PHASES:
        return []
    return [Update(families.PHASE_SECONDS, (policy, name, outcome, labels.scheme), seconds)]


def metadata_failed(labels: Labels, policy: str) -> list[Update]:
    """A metadata lookup raised."""
    return [Update(families.METADATA_FAILURES, (policy, labels.scheme))]


def attempted(labels: Labels, source: Any, policy: str, result: str, seconds: float | None) -> list[Update]:
    """An attempt ended; where a transfer was started, it counts as a selection of that source."""
    updates = [Update(families.ATTEMPTS, (policy, labels.scheme, result))]
    if seconds is None:
        return updates
    if labels.by_source:
        worker = str(getattr(source, "worker_id", ""))
        updates.append(Update(families.SELECTIONS_BY_SOURCE, (policy, labels.scheme, worker)))
    else:
        updates.append(Update(families.SELECTIONS, (policy, labels.scheme)))
    updates.append(Update(families.TRANSFER_SECONDS, (policy, labels.scheme, _OUTCOMES[result]), seconds))
    return updates
