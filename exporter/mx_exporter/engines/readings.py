"""From the samples of one page to what each engine on it says: pure decisions, following the table of engines."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from mx_exporter.engines import exposition
from mx_exporter.engines.gauges import Engine, Pick, Rule, Table

#: Readers round and engines overshoot a little; beyond this a gauge is not what we think it is.
_LOWEST, _HIGHEST = -1e-6, 1.05
_MAX_RANKS = 64
_MAX_RANK_TEXT = 16
_MAX_WORK = 1 << 14

#: A fingerprint of everything that moves while an engine works, of one rank at one time; empty where nothing is known.
Activity = bytes


@dataclasses.dataclass(frozen=True, slots=True)
class Reading:
    """What one rank of one engine says on one page."""

    engine: str
    index: str
    value: float | None  # in [0, 1]
    reason: str | None
    activity: Activity = b""
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
    ranks = {_rank(engine, s) for s in mine if _is_usage(engine, s)}
    if not ranks and any(metric in rule.pick.metrics for rule in engine.usage for metric in unreadable):
        return [Reading(engine.name, "", None, "unreadable")]
    by_rank: dict[str, list[_Series]] = {}
    for one in mine:
        by_rank.setdefault(_rank(engine, one), []).append(one)
    rankless = by_rank.get("", [])
    if _too_many(ranks, rankless):
        return [Reading(engine.name, "", None, "too_many_series")]
    return [_of_rank(engine, rank, by_rank[rank], rankless) for rank in sorted(ranks)]


def _too_many(ranks: Collection[str], rankless: Collection[_Series]) -> bool:
    """More than any engine has; each rank is seen together with what belongs to no rank, which is the work to bound."""
    return (
        len(ranks) > _MAX_RANKS
        or any(len(rank) > _MAX_RANK_TEXT for rank in ranks)
        or len(ranks) * len(rankless) > _MAX_WORK
    )


def _is_usage(engine: Engine, one: _Series) -> bool:
    return any(rule.pick.takes(one.metric, one.labels) for rule in engine.usage)


def _rank(engine: Engine, series: _Series) -> str:
    return next((series.labels[label] for label in engine.index if label in series.labels), "")


def _of_rank(engine: Engine, rank: str, own: Sequence[_Series], rankless: Sequence[_Series]) -> Reading:
    shared = (*own, *rankless) if rank else own
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
    full = _full(rule, shared)
    may_be_zero = rule.zero_needs is None or (_largest(rule.zero_needs, shared) or 0) > 0
    for one in picked:
        value, why = _value(one.value, full(one), may_be_zero)
        if value is None:
            whys.append(str(why))
        else:
            values.append(value)
    return values, whys


def _value(number: float, full: float | None, may_be_zero: bool) -> tuple[float | None, str | None]:
    if full is None or full <= 0 or not math.isfinite(full):
        return None, "no_blocks"
    if not math.isfinite(number):
        return None, "not_finite"
    value = number / full
    if not _LOWEST <= value <= _HIGHEST:
        return None, "out_of_range"
    if value <= 0 and not may_be_zero:
        return None, "no_blocks"
    return min(1.0, max(0.0, value)), None


def _full(rule: Rule, series: Sequence[_Series]) -> Callable[[_Series], float | None]:
    """What a gauge of the rule shows when the cache is full: its unit, or the divisor beside it.

    The divisor of a series is the one that differs from it in the labels alone by which the two were chosen.
    """
    if rule.of is None:
        return lambda _: rule.scale
    chosen = frozenset(name for name, _ in (*rule.pick.where, *rule.of.where))

    def rest(one: _Series) -> frozenset[tuple[str, str]]:
        return frozenset(pair for pair in one.labels.items() if pair[0] not in chosen)

    sizes = {rest(s): s.value for s in series if rule.of.takes(s.metric, s.labels)}
    return lambda one: sizes.get(rest(one))


def _largest(pick: Pick | None, series: Sequence[_Series]) -> float | None:
    if pick is None:
        return None
    values = (s.value for s in series if pick.takes(s.metric, s.labels) and not math.isnan(s.value))
    return max(values, default=None)


def _activity(engine: Engine, own: Sequence[_Series], shared: Sequence[_Series]) -> Activity:
    """The rank's own moving series; those of the whole engine only where it has none."""
    moving = [s for s in own if s.metric in engine.activity] or [s for s in shared if s.metric in engine.activity]
    if not moving:
        return b""
    gauges = [s for s in own if _is_usage(engine, s)]
    # As text, in which a number that is none equals itself; as a digest, since it is kept for every rank of the node.
    text = repr(sorted((s.metric, sorted(s.labels.items()), repr(s.value)) for s in (*moving, *gauges)))
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
