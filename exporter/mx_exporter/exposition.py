"""Families to pages: OpenTelemetry's data model, its Prometheus reader, and pages kept ready between two ticks.

The points come straight from a snapshot instead of through the SDK's meter provider and its instruments. The SDK keeps
an aggregation for every label set that an observable instrument ever reported and, from 2000 on, folds all new ones
into one series; on a node where pods come and go that ends in nothing but overflow. A snapshot's points are made and
forgotten together. (Its meter provider also runs threads in every child that the process forks.)
"""

from __future__ import annotations

import gzip
import threading
import time
from collections.abc import Callable, Iterable

from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Metric,
    MetricReader,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from mx_exporter.negotiation import form
from mx_exporter.snapshot import Snapshot
from mx_exporter.telemetry import Family, families

_SCOPE = InstrumentationScope("mx_exporter", "")
_LARGEST_INTEGER = 2**63 - 1  # OTLP's integers are signed


def metrics_data(made: Iterable[Family], resource: Resource, start: float, wall: float) -> MetricsData:
    """Families as OpenTelemetry has them.

    Args:
        made: The families.
        resource: What they describe.
        start: Since when the counters count, in seconds since 1970.
        wall: When the points were true, in seconds since 1970.
    """
    metrics = [_metric(family, int(start * 1e9), int(wall * 1e9)) for family in made]
    return MetricsData([ResourceMetrics(resource, [ScopeMetrics(_SCOPE, metrics, "")], "")])


def _metric(family: Family, start: int, at: int) -> Metric:
    points = [
        NumberDataPoint(dict(attributes), start if family.counter else 0, at, _number(value))
        for attributes, value in family.points
    ]
    data: Sum | Gauge = Gauge(points)
    if family.counter:
        data = Sum(points, AggregationTemporality.CUMULATIVE, is_monotonic=True)
    return Metric(family.name, family.description, family.unit, data)


def _number(value: float) -> float:
    return float(value) if value > _LARGEST_INTEGER else value


class Pages:
    """The pages of the current snapshot, rendered once per tick and form and then served from memory."""

    def __init__(self, resource: Resource, start: float | None = None) -> None:
        self._resource = resource
        self._start = time.time() if start is None else start
        self._lock = threading.Lock()
        self._snapshot: Snapshot | None = None
        self._cache: dict[tuple[str, bool], tuple[Snapshot, bytes, str]] = {}
        self._registry = CollectorRegistry(auto_describe=False)
        self._data: MetricsData | None = None
        reader = PrometheusMetricReader(registry=self._registry, scope_info_enabled=False)
        # What a meter provider does with a reader; the SDK has no other way in for points made elsewhere.
        reader._set_collect_callback(self._collected)  # type: ignore[arg-type]  # the SDK's own annotation is off

    def _collected(self, _reader: MetricReader, timeout_millis: float = 10_000) -> MetricsData | None:
        return self._data

    def page(self, snapshot: Snapshot, accept: str = "", compressed: bool = False) -> tuple[bytes, str]:
        """The page of a snapshot and its content type.

        Args:
            snapshot: What to show; the same one gives the same bytes.
            accept: The request's Accept header.
            compressed: Whether the bytes are to be gzip.
        """
        wanted = form(accept)
        key = (wanted, compressed)
        with self._lock:
            kept = self._cache.get(key)
            if kept is None or kept[0] is not snapshot:
                encoder, content_type = choose_encoder(wanted)
                body = self._render(snapshot, encoder)
                kept = (snapshot, gzip.compress(body, 1) if compressed else body, content_type)
                self._cache = {k: v for k, v in self._cache.items() if v[0] is snapshot} | {key: kept}
            return kept[1], kept[2]

    def _render(self, snapshot: Snapshot, encoder: Callable[[CollectorRegistry], bytes]) -> bytes:
        self._data = metrics_data(families(snapshot), self._resource, self._start, snapshot.wall)
        return encoder(self._registry)
