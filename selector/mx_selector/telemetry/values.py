"""What one process has recorded, and how the values of several processes become one page.

Pure but for the clock it is given. A `Snapshot` is plain JSON: what `spool` writes and reads.
"""

from __future__ import annotations

import bisect
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from mx_selector.telemetry.families import Family, Kind, Update

#: Seconds that a gauge is shown without being set again: a reading of a moment, not a state.
GAUGE_SECONDS: Final = 300.0

#: One series: (family name, label names, label values).
Key = tuple[str, tuple[str, ...], tuple[str, ...]]
#: A counter's total; a histogram's [count per bucket and above the last, sum]; a gauge's [value, unix time].
Value = Any
Snapshot = dict[Key, Value]

#: Gauges that describe the process itself and stay while it lives.
_CONSTANT: Final = frozenset({"mx_build_info"})


class Values:
    """The values of this process; safe to use from several threads."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._values: Snapshot = {}

    def record(self, updates: Iterable[Update]) -> None:
        """Apply the updates of one event together."""
        with self._lock:
            for update in updates:
                self._apply(update)

    def _apply(self, update: Update) -> None:
        family, key = update.family, (update.family.name, update.family.labels, update.labels)
        if update.value is None:
            self._values = {k: v for k, v in self._values.items() if k[0] != family.name}
        elif family.kind is Kind.COUNTER:
            self._values[key] = self._values.get(key, 0.0) + update.value
        elif family.kind is Kind.GAUGE:
            self._values[key] = [update.value, self._clock()]
        else:
            counts, total = self._values.get(key, ([0] * (len(family.buckets) + 1), 0.0))
            counts = list(counts)
            counts[bisect.bisect_left(family.buckets, update.value)] += 1
            self._values[key] = [counts, total + update.value]

    def snapshot(self) -> Snapshot:
        """A copy that later records leave alone."""
        with self._lock:
            return dict(self._values)


def merge(snapshots: Iterable[Snapshot], kinds: dict[str, Kind]) -> Snapshot:
    """The sum of several processes: counters and histograms add up, of a gauge the latest value counts.

    Args:
        snapshots: In any order.
        kinds: Kind of each family by name; series of unknown families are left out.
    """
    merged: Snapshot = {}
    for snapshot in snapshots:
        for key, value in snapshot.items():
            if key[0] in kinds:
                merged[key] = _combine(kinds[key[0]], merged[key], value) if key in merged else value
    return merged


def _combine(kind: Kind, one: Value, two: Value) -> Value:
    if kind is Kind.COUNTER:
        return one + two
    if kind is Kind.GAUGE:
        return max(one, two, key=lambda gauge: gauge[1])
    if len(one[0]) != len(two[0]):  # another version's buckets
        return one
    return [[a + b for a, b in zip(one[0], two[0], strict=True)], one[1] + two[1]]


def current(snapshot: Snapshot, kinds: dict[str, Kind], now: float) -> Snapshot:
    """Without the gauges that were not set for 300 s."""

    def holds(key: Key, value: Value) -> bool:
        return kinds[key[0]] is not Kind.GAUGE or key[0] in _CONSTANT or now - value[1] <= GAUGE_SECONDS

    return {key: value for key, value in snapshot.items() if holds(key, value)}


def without_gauges(snapshot: Snapshot, kinds: dict[str, Kind]) -> Snapshot:
    """What remains of a process that ended."""
    return {key: value for key, value in snapshot.items() if kinds.get(key[0]) is not Kind.GAUGE}


def kinds_of(families: Iterable[Family]) -> dict[str, Kind]:
    """Kind by family name."""
    return {family.name: family.kind for family in families}


def dump(snapshot: Snapshot) -> list[Any]:
    """As JSON values."""
    return [[name, labels, values, value] for (name, labels, values), value in snapshot.items()]


def load(content: Sequence[Any]) -> Snapshot:
    """From `dump`.

    Raises:
        ValueError: Not something that `dump` made.
        TypeError: Likewise.
    """
    return {(name, tuple(labels), tuple(values)): value for name, labels, values, value in content}
