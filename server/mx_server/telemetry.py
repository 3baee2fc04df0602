"""What the server says about itself, in Prometheus' words; served by `http`.

Written to by `service`, `reaper` and `auth`. Rows are gauges of the last scan and vanish when a scan fails: an
unknown number is not shown as the last one.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator, Mapping
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from mx_server.core.records import STATUS_NAMES

RPCS: Final = ("PublishMetadata", "ListSources", "GetMetadata", "UpdateStatus")
_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class Telemetry:
    """The server's metrics.

    Args:
        backend: The backend's name, for labels.
        scheme: Plain `grpc`, or `grpcs` with TLS.
    """

    def __init__(self, backend: str, scheme: str = "grpc") -> None:
        self.registry = CollectorRegistry()
        self._backend, self._scheme = backend, scheme
        self._sources: Mapping[int, int] | None = None
        self._requests = Counter(
            "mx_server_requests", "Answered calls, by result.", ["rpc", "result"], registry=self.registry
        )
        self._seconds = Histogram(
            "mx_server_request_duration_seconds",
            "Time from a call's arrival in the handler to its answer.",
            ["rpc"],
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self._errors = Counter(
            "mx_server_backend_errors",
            "Operations the backend failed or did not answer in time.",
            ["backend", "operation"],
            registry=self.registry,
        )
        self._reaped = Counter(
            "mx_server_reaped", "Rows this replica marked stale or forgot.", ["action"], registry=self.registry
        )
        self._auth = Counter(
            "mx_server_auth", "Calls by the verdict on their token.", ["verdict"], registry=self.registry
        )
        self.registry.register(self)
        self._timers = {rpc: self._seconds.labels(rpc) for rpc in RPCS}
        self._results = {(rpc, "ok"): self._requests.labels(rpc, "ok") for rpc in RPCS}

    def answered(self, rpc: str, result: str, seconds: float) -> None:
        """Count one call."""
        counter = self._results.get((rpc, result)) or self._results.setdefault(
            (rpc, result), self._requests.labels(rpc, result)
        )
        counter.inc()
        self._timers[rpc].observe(seconds)

    def backend_failed(self, operation: str) -> None:
        """Count a failure of the backend."""
        self._errors.labels(self._backend, operation).inc()

    def scanned(self, sources: Mapping[int, int] | None) -> None:
        """Show how many rows there are of each status; None when the last scan failed."""
        self._sources = sources

    def reaped(self, action: str, count: int) -> None:
        """Count rows that the reaper changed."""
        self._reaped.labels(action).inc(count)

    def judged(self, verdict: str) -> None:
        """Count a verdict on a token."""
        self._auth.labels(verdict).inc()

    def page(self) -> bytes:
        """The page a scrape gets, in Prometheus' text format."""
        return generate_latest(self.registry)

    def collect(self) -> Iterator[Metric]:
        """What is read at scrape time (prometheus_client's collector protocol)."""
        info = GaugeMetricFamily(
            "mx_build_info", "Which build this is.", labels=["component", "version", "backend", "scheme"]
        )
        info.add_metric(["server", version(), self._backend, self._scheme], 1)
        yield info
        up = GaugeMetricFamily(
            "mx_server_backend_up", "Whether the last scan of the backend succeeded.", labels=["backend"]
        )
        up.add_metric([self._backend], float(self._sources is not None))
        yield up
        sources = GaugeMetricFamily("mx_server_sources", "Rows at the last scan, by stored status.", labels=["status"])
        for status, count in sorted((self._sources or {}).items()):
            sources.add_metric([STATUS_NAMES.get(status, str(status)).lower()], count)
        yield sources


def version() -> str:
    """The installed version of this project; `unknown` from a bare source tree."""
    try:
        return importlib.metadata.version("mx-source-load")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
