"""The operator's own metrics: a picture of the last cycles, made when it is asked for.

Gauges are what the loops handed over last, so a series ends with its policy, signal or source; counters end with
their policy. Names and labels are a contract with the dashboards and alerts.
"""

from __future__ import annotations

import bisect
import collections
import importlib.metadata
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from mx_operator.core.model import Result
from mx_operator.core.reports import PolicyReport
from mx_operator.loop.endpoints import Cycle, EndpointKey
from mx_operator.telemetry import sources

_STATES = ("listed", "matched", "unmatched", "ambiguous", "stale", "invalid", "conflicting")
_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0)


class Metrics(Collector):
    """Sees every cycle (a `CycleObserver`) and answers scrapes."""

    def __init__(
        self,
        scheme: str = "",
        per_source: bool = True,
        written: bool = False,
        clocks: Callable[[], tuple[float, float]] = lambda: (time.monotonic(), time.time()),
    ) -> None:
        """Make the metrics, in a registry of their own.

        Args:
            scheme: Value of the label of that name, which the clients' own series carry, too.
            per_source: Also the two series per listed source, whose labels hold per-process ids.
            written: Also two series per listed source that say what was written last and when.
            clocks: This process' monotonic clock and its wall clock, at one moment.
        """
        self.registry = CollectorRegistry()
        self._scheme, self._per_source, self._written, self._clocks = scheme, per_source, written, clocks
        self._reports: dict[EndpointKey, Sequence[PolicyReport]] = {}
        self._listed: dict[EndpointKey, sources.Listed] = {}
        self._writes: collections.Counter[tuple[str, str]] = collections.Counter()
        self._skips: collections.Counter[tuple[str, str]] = collections.Counter()
        self._clamped: collections.Counter[str] = collections.Counter()
        self._cycles = [0] * (len(_BUCKETS) + 1)
        self._cycles_sum = 0.0
        self.registry.register(self)

    def saw(self, endpoint: EndpointKey, cycle: Cycle, reports: Sequence[PolicyReport]) -> None:
        """Take in a cycle."""
        took = cycle.ended - cycle.started
        self._cycles[bisect.bisect_left(_BUCKETS, took)] += 1
        self._cycles_sum += took
        before = {report.policy for report in self._reports.get(endpoint, ())}
        self._reports[endpoint] = reports
        self._listed[endpoint] = sources.Listed(cycle.rows, cycle.identities, cycle.ledger.memory.rows)
        for outcome in cycle.outcomes:
            if outcome.result is Result.UNSENT:
                continue  # a skip, and counted as one
            self._writes[outcome.write.policy, outcome.result.value] += 1
        for report in reports:
            for reason, count in report.skips.items():
                self._skips[report.policy, reason] += count
            self._clamped[report.policy] += report.counts.clamped
        self._forget(before - {report.policy for report in reports})

    def reports(self) -> list[PolicyReport]:
        """The last report of every policy."""
        return [report for group in list(self._reports.values()) for report in group]

    def left(self, endpoint: EndpointKey) -> None:
        """Forget an endpoint and its policies."""
        reports = self._reports.pop(endpoint, ())
        self._listed.pop(endpoint, None)
        self._forget({report.policy for report in reports})

    def _forget(self, policies: Iterable[str]) -> None:
        served = {report.policy for reports in self._reports.values() for report in reports}
        gone = set(policies) - served
        if gone:
            for counter in (self._writes, self._skips):
                for key in [key for key in counter if key[0] in gone]:
                    del counter[key]
            for policy in gone:
                self._clamped.pop(policy, None)

    def describe(self) -> Iterable[Metric]:
        """Nothing to check names against beforehand."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Everything as it is now; also called from another thread, so on copies."""
        yield from _of_policies(self.reports())
        writes = CounterMetricFamily("mx_operator_writes", "Writes by how they ended.", labels=["policy", "result"])
        _fill(writes, self._writes)
        skips = CounterMetricFamily(
            "mx_operator_skips", "Listed sources that a cycle did not write, by reason.", labels=["policy", "reason"]
        )
        _fill(skips, self._skips)
        clamped = CounterMetricFamily("mx_operator_clamped", "Readings outside [0, 1].", labels=["policy"])
        for policy, count in list(self._clamped.items()):
            clamped.add_metric([policy], count)
        build = GaugeMetricFamily("mx_build_info", "1, with what runs.", labels=["component", "version"])
        build.add_metric(["operator", importlib.metadata.version("mx-source-load")], 1)
        yield from (self._durations(), writes, skips, clamped, build)

    def _durations(self) -> Metric:
        counts = list(itertools.accumulate(self._cycles))
        bounds = [*(repr(bound) for bound in _BUCKETS), "+Inf"]
        return HistogramMetricFamily(
            "mx_operator_cycle_duration_seconds",
            "Time from the start of a cycle to its report.",
            buckets=list(zip(bounds, counts, strict=True)),
            sum_value=self._cycles_sum,
        )

    def page(self) -> bytes:
        """The whole page in Prometheus' text format; may be called in another thread."""
        return generate_latest(self.registry) + "".join(self._of_sources()).encode()

    def _of_sources(self) -> Iterator[str]:
        if not (self._per_source or self._written):
            return
        everybody = sources.each(list(self._listed.values()))
        if self._per_source:
            yield from sources.listing(everybody, self._scheme)
        if self._written:
            monotonic, wall = self._clocks()
            yield from sources.written(everybody, wall - monotonic)


def _fill(family: CounterMetricFamily, counter: Mapping[tuple[str, str], int]) -> None:
    for labels, count in sorted(dict(counter).items()):
        family.add_metric(labels, count)


def _of_policies(reports: Sequence[PolicyReport]) -> Iterator[Metric]:
    by_state = GaugeMetricFamily("mx_operator_sources", "Sources, by state.", labels=["policy", "state"])
    ages = GaugeMetricFamily(
        "mx_operator_signal_age_seconds", "Age of a signal's youngest sample.", labels=["policy", "signal"]
    )
    up = GaugeMetricFamily(
        "mx_operator_dependency_up", "1 while it answers, 0 while it does not.", labels=["policy", "dependency"]
    )
    supported = GaugeMetricFamily(
        "mx_operator_load_supported", "1 if written loads are read back, 0 if they get lost.", labels=["policy"]
    )
    heartbeat = GaugeMetricFamily(
        "mx_operator_heartbeat_interval_seconds", "Median interval between sources' heartbeats.", labels=["policy"]
    )
    configured = GaugeMetricFamily(
        "mx_operator_heartbeat_interval_configured_seconds",
        "What the policy says it is (sourceHeartbeat).",
        labels=["policy"],
    )
    skew = GaugeMetricFamily(
        "mx_operator_server_clock_skew_seconds", "How far the server's replicas' clocks differ.", labels=["policy"]
    )
    for report in reports:
        for state in _STATES:
            by_state.add_metric([report.policy, state], getattr(report.counts, state))
        for signal, age in report.signal_ages.items():
            ages.add_metric([report.policy, signal], age)
        _known(up, [report.policy, "prometheus"], report.prometheus.ok)
        _known(up, [report.policy, "server"], report.server.ok)
        _known(supported, [report.policy], report.load_supported.ok)
        _known(heartbeat, [report.policy], report.heartbeat_interval)
        _known(configured, [report.policy], report.source_heartbeat)
        _known(skew, [report.policy], report.clock_skew)
    yield from (by_state, ages, up, supported, heartbeat, configured, skew)


def _known(family: GaugeMetricFamily, labels: Sequence[str], value: float | bool | None) -> None:
    if value is not None:
        family.add_metric(labels, float(value))
