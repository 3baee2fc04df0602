"""Merged values as prometheus_client's metric families, which makes them a page in whatever format is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import Metric
from prometheus_client.utils import floatToGoString

from mx_selector.telemetry.families import Family, Kind
from mx_selector.telemetry.values import Snapshot, Value

_TYPES = {Kind.COUNTER: "counter", Kind.GAUGE: "gauge", Kind.HISTOGRAM: "histogram"}


class Collector:
    """A collector in prometheus_client's sense; `read` gives the values of the moment."""

    def __init__(self, families: Iterable[Family], read: Callable[[], Snapshot]) -> None:
        self._families, self._read = tuple(families), read

    def collect(self) -> Iterator[Metric]:
        """One metric per family that has a series."""
        series: dict[str, list[tuple[dict[str, str], Value]]] = {}
        for (name, labels, values), value in sorted(self._read().items(), key=lambda item: item[0]):
            series.setdefault(name, []).append((dict(zip(labels, values, strict=True)), value))
        for family in self._families:
            metric = Metric(family.name, family.help, _TYPES[family.kind])
            for named, value in series.get(family.name, ()):
                _add(metric, family, named, value)
            if metric.samples:
                yield metric


def _add(metric: Metric, family: Family, labels: dict[str, str], value: Value) -> None:
    if family.kind is Kind.COUNTER:
        metric.add_sample(f"{family.name}_total", labels, value)
    elif family.kind is Kind.GAUGE:
        metric.add_sample(family.name, labels, value[0])
    else:
        _add_histogram(metric, family, labels, *value)


def _add_histogram(metric: Metric, family: Family, labels: dict[str, str], counts: list[int], total: float) -> None:
    below = 0
    for bound, count in zip((*family.buckets, float("inf")), counts, strict=False):
        below += count
        le = str(floatToGoString(bound))  # type: ignore[no-untyped-call]
        metric.add_sample(f"{family.name}_bucket", {**labels, "le": le}, below)
    metric.add_sample(f"{family.name}_count", labels, below)
    metric.add_sample(f"{family.name}_sum", labels, total)
