"""From the samples of one page to what each engine on it says: pure decisions, following the table of engines."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence

from mx_exporter.engines import exposition
from mx_exporter.engines.gauges import Engine, Pick, Rule, Table

#: Readers round and engines overshoot a little; beyond this a gauge is not what we think it is.
_LOWEST, _HIGHEST = -1e-6, 1.05
_MAX_RANKS = 64
_MAX_RANK_TEXT = 16

#: Everything that moves while an engine works, of one rank at one time.
Activity = tuple[tuple[str, tuple[tuple[str, str], ...], float], ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Reading:
    """What one rank of one engine says on one page."""

    engine: str
    index: str
    value: float | None  # in [0, 1]
    reason: str | None
    activity: Activity = ()
    may_rest: bool = False  # standing still above zero is believable: nothing is in flight


@dataclasses.dataclass(frozen=True, slots=True)
class PageReadings:
    """What a page says: a reading for each rank that shows a gauge, and how many wanted lines were no samples."""

    readings: tuple[Reading, ...]
    bad_lines: int


@dataclasses.dataclass(frozen=True, slots=True)
class _Series:
    metric: str
    labels: Mapping[str, str]
    value: float


def read(table: Table, lines: Iterable[bytes]) -> PageReadings:
    """Read the wanted lines of a page.

    Args:
        table: The engines to look for.
        lines: What the line filter kept.

    Returns:
        One reading for each engine and rank that shows a usage gauge, sorted; none for an engine that shows only
        other metrics.
    """
    series, unreadable = _parse(table, lines)
    found = [reading for engine in table.engines for reading in _of_engine(engine, series, unreadable)]
    return PageReadings(tuple(sorted(found, key=lambda r: (r.engine, r.index))), len(unreadable))


def _parse(table: Table, lines: Iterable[bytes]) -> tuple[list[_Series], list[str]]:
    series, unreadable = [], []
    for line in lines:
        try:
            sample = exposition.parse(line)
        except exposition.LineError:
            metric = table.canonical(exposition.name_of(line))
            unreadable.append(metric or "")
            continue
        metric = table.canonical(sample.name)
        if metric is not None:
            series.append(_Series(metric, sample.labels, sample.value))
    return series, unreadable


def _of_engine(engine: Engine, series: Sequence[_Series], unreadable: Sequence[str]) -> list[Reading]:
    metrics = engine.metrics()
    mine = [s for s in series if s.metric in metrics and not any(label in s.labels for label in engine.others)]
    gauges = [s for s in mine if any(rule.pick.takes(s.metric, s.labels) for rule in engine.usage)]
    ranks = sorted({_rank(engine, s) for s in gauges})
    if not ranks and any(metric in rule.pick.metrics for rule in engine.usage for metric in unreadable):
        return [Reading(engine.name, "", None, "unreadable")]
    if len(ranks) > _MAX_RANKS or any(len(rank) > _MAX_RANK_TEXT for rank in ranks):
        return [Reading(engine.name, "", None, "too_many_series")]
    return [_of_rank(engine, rank, mine) for rank in ranks]


def _rank(engine: Engine, series: _Series) -> str:
    return next((series.labels[label] for label in engine.index if label in series.labels), "")


def _of_rank(engine: Engine, rank: str, series: Sequence[_Series]) -> Reading:
    own = [s for s in series if _rank(engine, s) == rank]
    shared = own if not rank else [s for s in series if _rank(engine, s) in (rank, "")]
    value, reason = _usage(engine, own, shared)
    if _largest(engine.awake, shared) == 0:
        value, reason = None, "asleep"
    may_rest = engine.holds_at_rest and not _largest(engine.running, shared)
    return Reading(engine.name, rank, value, reason, _activity(engine, own, shared), may_rest)


def _usage(engine: Engine, own: Sequence[_Series], shared: Sequence[_Series]) -> tuple[float | None, str | None]:
    """The first rule that yields a number; else the reason of the first that has a gauge."""
    reason = None
    for rule in engine.usage:
        picked = [s for s in own if rule.pick.takes(s.metric, s.labels)]
        values, whys = _values(rule, picked, shared)
        if values:
            return max(values), None
        reason = reason or min(whys, default=None)  # not the first: the order of lines means nothing
    return None, reason


def _values(rule: Rule, picked: Sequence[_Series], shared: Sequence[_Series]) -> tuple[list[float], list[str]]:
    values, whys = [], []
    for one in picked:
        value, why = _value(rule, one, shared)
        if value is None:
            whys.append(str(why))
        else:
            values.append(value)
    return values, whys


def _value(rule: Rule, one: _Series, shared: Sequence[_Series]) -> tuple[float | None, str | None]:
    full = rule.scale if rule.of is None else _same_series(rule, one, shared)
    if full is None or full <= 0 or not math.isfinite(full):
        return None, "no_blocks"
    if not math.isfinite(one.value):
        return None, "not_finite"
    value = one.value / full
    if not _LOWEST <= value <= _HIGHEST:
        return None, "out_of_range"
    if value <= 0 and rule.zero_needs is not None and not (_largest(rule.zero_needs, shared) or 0) > 0:
        return None, "no_blocks"
    return min(1.0, max(0.0, value)), None


def _same_series(rule: Rule, one: _Series, series: Sequence[_Series]) -> float | None:
    """What the series of the divisor says that differs from `one` in the chosen labels only."""
    assert rule.of is not None
    chosen = {name for name, _ in (*rule.pick.where, *rule.of.where)}

    def rest(labels: Mapping[str, str]) -> dict[str, str]:
        return {name: value for name, value in labels.items() if name not in chosen}

    found = [s.value for s in series if rule.of.takes(s.metric, s.labels) and rest(s.labels) == rest(one.labels)]
    return found[0] if found else None


def _largest(pick: Pick | None, series: Sequence[_Series]) -> float | None:
    values = [
        s.value for s in series if pick is not None and pick.takes(s.metric, s.labels) and not math.isnan(s.value)
    ]
    return max(values, default=None)


def _activity(engine: Engine, own: Sequence[_Series], shared: Sequence[_Series]) -> Activity:
    """The rank's own moving series; those of the whole engine only where it has none."""
    moving = [s for s in own if s.metric in engine.activity] or [s for s in shared if s.metric in engine.activity]
    if not moving:
        return ()
    gauges = [s for s in own if any(rule.pick.takes(s.metric, s.labels) for rule in engine.usage)]
    return tuple(sorted((s.metric, tuple(sorted(s.labels.items())), s.value) for s in (*moving, *gauges)))
