"""Families to pages: OpenTelemetry's data model, its Prometheus reader, and pages kept ready between two ticks.

The points come straight from a snapshot instead of through the SDK's instruments. The SDK keeps an aggregation for
every label set that an observable instrument ever reported and, from 2000 on, folds all new ones into one series; on a
node where pods come and go that ends in nothing but overflow. A snapshot's points are made and forgotten together.
What never changes (`mx_build_info`) is an ordinary instrument, and readers add the snapshot to what the SDK collects.
"""

from __future__ import annotations

import gzip
import threading
import time
from collections.abc import Callable, Iterable, Sequence

from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.metrics import Observation
from opentelemetry.sdk.metrics import MeterProvider
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

from mx_exporter.snapshot import Snapshot
from mx_exporter.telemetry import Family, build_info, families

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


def joined(collected: MetricsData, added: MetricsData) -> MetricsData:
    """What the SDK collected with what a snapshot adds to it."""
    return MetricsData([*collected.resource_metrics, *added.resource_metrics])


class _PageReader(PrometheusMetricReader):
    """OpenTelemetry's Prometheus reader; adds a snapshot's points to what the SDK collects."""

    def __init__(self, registry: CollectorRegistry, added: Callable[[], MetricsData]) -> None:
        self._added = added
        super().__init__(registry=registry, scope_info_enabled=False)

    def _receive_metrics(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: object) -> None:
        super()._receive_metrics(joined(metrics_data, self._added()), timeout_millis, **kwargs)


def provider(resource: Resource, readers: Sequence[MetricReader]) -> MeterProvider:
    """A meter provider with what never changes: the build."""
    made = MeterProvider(readers, resource, shutdown_on_exit=False)
    observe = [Observation(1, dict(build_info()))]
    made.get_meter("mx_exporter").create_observable_gauge(
        "mx.build.info", [lambda _options: observe], description="1; what is running."
    )
    return made


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
        self._provider = provider(resource, [_PageReader(self._registry, self._current)])

    def _current(self) -> MetricsData:
        assert self._data is not None
        return self._data

    def page(self, snapshot: Snapshot, accept: str = "", compressed: bool = False) -> tuple[bytes, str]:
        """The page of a snapshot and its content type.

        Args:
            snapshot: What to show; the same one gives the same bytes.
            accept: The request's Accept header: OpenMetrics where it is asked for, else text.
            compressed: Whether the bytes are to be gzip.
        """
        encoder, content_type = choose_encoder(accept)
        key = (content_type, compressed)
        with self._lock:
            kept = self._cache.get(key)
            if kept is None or kept[0] is not snapshot:
                body = self._render(snapshot, encoder)
                kept = (snapshot, gzip.compress(body, 1) if compressed else body, content_type)
                self._cache = {k: v for k, v in self._cache.items() if v[0] is snapshot} | {key: kept}
            return kept[1], kept[2]

    def _render(self, snapshot: Snapshot, encoder: Callable[[CollectorRegistry], bytes]) -> bytes:
        self._data = metrics_data(families(snapshot), self._resource, self._start, snapshot.wall)
        return encoder(self._registry)
