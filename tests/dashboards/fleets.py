"""Fleets made by hand, as series over time: one at rest, one with much of it broken, one of thousands.

What the lab records is real but healthy and small; these show what it cannot, with the names and labels that the code
has (`test_metrics` holds them to the catalogue).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from tests.dashboards.history import END
from tests.dashboards.openmetrics import Labels, Series

#: From seconds before the end (negative) to a value, or None where there is no sample.
Values = Callable[[float], float | None]
MODEL: Final = "prod/llama-70b"
TTFT: Final = (0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0)
TRANSFER: Final = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
CHOSEN: Final = (0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
AGES: Final = (1.0, 2.0, 5.0, 10.0, 15.0, 20.0, 30.0, 45.0, 60.0, 90.0, 120.0)


@dataclasses.dataclass(frozen=True)
class Clock:
    """How far back a fleet goes, and how often it was scraped."""

    seconds: float = 3600.0
    step: float = 15.0

    def samples(
        self, values: Values, seconds: float | None = None, step: float | None = None
    ) -> list[tuple[float, str]]:
        """Samples at each scrape."""
        span, every = seconds or self.seconds, step or self.step
        times = (-span + every * number for number in range(int(span / every) + 1))
        return [(END + at, repr(float(value))) for at in times if (value := values(at)) is not None]


def constant(value: float) -> Values:
    """Always the same."""
    return lambda _at: value


def growing(rate: float) -> Values:
    """A counter that grows by `rate` a second."""
    return lambda at: 1e6 + rate * (at + 10_000)


def until(at: float, before: float, after: float | None) -> Values:
    """A value that changes at a time (None: the series ends there)."""
    return lambda now: before if now < at else after


def wave(level: float, phase: float) -> Values:
    """A gauge that moves a little."""
    return lambda at: min(1.0, max(0.0, level + min(0.03, level / 2) * math.sin(at / 40 + phase)))


def histogram(
    name: str, labels: Mapping[str, str], bounds: Iterable[float], typical: Values, count: Values
) -> list[tuple[str, Labels, Values]]:
    """A histogram whose observations lie around `typical`, `count` of them."""

    def below(bound: float) -> Values:
        def value(at: float) -> float | None:
            middle, number = typical(at), count(at)
            if middle is None or number is None:
                return None
            return number if math.isinf(bound) else math.floor(number * bound**4 / (bound**4 + middle**4))

        return value

    made = [(f"{name}_bucket", {**labels, "le": _le(bound)}, below(bound)) for bound in (*bounds, math.inf)]
    return [*made, (f"{name}_count", dict(labels), count), (f"{name}_sum", dict(labels), count)]


def _le(bound: float) -> str:
    return "+Inf" if math.isinf(bound) else str(bound)


@dataclasses.dataclass(frozen=True)
class Source:
    """One source: where it is, and what it does."""

    number: int
    load: float

    @property
    def node(self) -> int:
        return self.number // 8

    @property
    def device(self) -> str:
        return f"mlx5_{self.number % 8}"

    @property
    def ip(self) -> str:
        return f"10.{self.number // 62500}.{self.number // 250 % 250}.{self.number % 250 + 1}"

    @property
    def worker(self) -> str:
        return f"{self.number * 2654435761 % 2**32:08x}"

    @property
    def pod(self) -> dict[str, str]:
        name = f"llama-{self.number}"
        return {
            "k8s_namespace_name": "prod",
            "k8s_pod_name": name,
            "k8s_pod_uid": f"uid-{self.number}",
            "k8s_pod_ip": self.ip,
        }


def exporter(node: int) -> dict[str, str]:
    """The scrape labels of a node's exporter."""
    return {"job": "mx-exporter", "instance": f"10.200.{node // 250}.{node % 250 + 1}:9500", "node": f"gpu-{node}"}


def engine(source: Source) -> dict[str, str]:
    """The scrape labels of an engine."""
    return {"job": "engine", "instance": f"{source.ip}:8000"}


def target(number: int) -> dict[str, str]:
    """The scrape labels of a target's own metrics."""
    return {"job": "mx-client", "instance": f"10.100.{number // 250}.{number % 250 + 1}:9402"}


OPERATOR: Final = {"job": "mx-operator", "instance": "10.250.0.1:9600"}
Made = Iterator[tuple[str, Labels, Values]]


def ports(source: Source, rate: float) -> Made:
    """One source's NIC, as its node's exporter shows it; `rate` is bytes a second."""
    port = {**exporter(source.node), "device": source.device, "port": "1", "hw_id": f"{source.device}/1"}
    for direction, share in (("transmit", 1.0), ("receive", 0.1)):
        way = {**port, "network_io_direction": direction}
        yield "hw_network_io_bytes_total", way, growing(rate * share)
        yield "hw_network_bandwidth_utilization", way, wave(rate * share / 50e9, source.number)
        yield "hw_network_bandwidth_utilization_peak", way, wave(rate * share / 50e9, source.number)
    yield "hw_network_bandwidth_limit_bytes_per_second", port, constant(50e9)
    yield "hw_network_up", port, constant(1)


def node(number: int, sources: int) -> Made:
    """What an exporter says of itself."""
    labels = exporter(number)
    yield "up", labels, constant(1)
    yield "mx_exporter_sample_timestamp_seconds", labels, lambda at: END + at - 0.4
    yield "mx_exporter_sample_duration_seconds", labels, wave(0.004, number)
    yield "mx_exporter_ports", labels, constant(8)
    yield "mx_exporter_sources", labels, constant(sources)
    yield "mx_exporter_discovery_age_seconds", labels, constant(1)
    yield "mx_build_info", {**labels, "component": "exporter", "version": "0.1.0", "python": "3.11.2"}, constant(1)


def measured(source: Source) -> Made:
    """A source's load and cache, as the exporter measures them."""
    labels = {**exporter(source.node), **source.pod}
    yield "mx_source_load", {**labels, "gpu": "", "nic_mapping": "affinity"}, wave(source.load, source.number)
    usage = wave(source.load / 2, source.number)
    yield "mx_kv_cache_usage", {**labels, "engine": "vllm", "engine_index": "0"}, usage
    yield "mx_exporter_target_up", {**labels, "target_port": "8000"}, constant(1)
    yield "mx_exporter_target_scrape_duration_seconds", {**labels, "target_port": "8000"}, wave(0.02, source.number)


def listed(source: Source, load: Values | None = None) -> Made:
    """A source as the operator lists it."""
    row = {**OPERATOR, "source_worker_id": source.worker, "worker_rank": "0"}
    place = {"mx_source_id": "0123456789abcdef", "k8s_pod_ip": source.ip}
    yield "mx_p2p_source_info", {**row, **place}, constant(1)
    labels = {**row, "model_name": MODEL, "origin": "listing"}
    yield "mx_p2p_source_load", labels, load or wave(source.load, source.number)
    yield "mx_operator_written_load", {**row, "mx_source_id": place["mx_source_id"]}, constant(source.load)
    stamp = "mx_operator_written_timestamp_seconds"
    yield stamp, {**row, "mx_source_id": place["mx_source_id"]}, lambda at: END + at - 11


def served(source: Source, rate: float, typical: Values) -> Made:
    """A source's engine: requests a second, and the usual time to first token."""
    labels = {**engine(source), "model_name": MODEL, "engine": "0"}
    yield "vllm:num_requests_running", labels, constant(math.ceil(rate * 4))
    yield "vllm:num_requests_waiting", labels, constant(math.floor(rate / 4))
    yield "vllm:kv_cache_usage_perc", labels, wave(source.load / 2, source.number)
    yield "vllm:generation_tokens_total", labels, growing(rate * 120)
    count = growing(rate)
    yield from histogram("vllm:time_to_first_token_seconds", labels, TTFT, typical, count)


def pulled(number: int, policy: str, chosen: float, seconds: float, born: float, outcome: str = "success") -> Made:
    """A target that pulled once: its counters appear `born` seconds before the end, at 1."""
    labels = {**target(number), "policy": policy, "scheme": ""}

    def since_birth(value: float) -> Values:
        return lambda at: value if at >= -born else None

    yield "mx_p2p_list_sources_total", {**labels, "result": "ok"}, since_birth(1)
    result = {"success": "success", "retry": "transfer_retry", "fallback": "transfer_fallback"}[outcome]
    yield "mx_p2p_source_attempts_total", {**labels, "result": result}, since_birth(1)
    yield "mx_p2p_source_selections_total", labels, since_birth(1)
    for name, bounds, value, more in (
        ("mx_selector_chosen_load", CHOSEN, chosen, {}),
        ("mx_selector_chosen_load_age_seconds", AGES, 14.0, {}),
        ("mx_p2p_transfer_seconds", TRANSFER, seconds, {"outcome": outcome}),
        ("mx_p2p_candidates", (0.0, 1.0, 8.0, 128.0), 100.0, {"stage": "listed"}),
    ):
        for bound in (*bounds, math.inf):
            held = 1.0 if value <= bound else 0.0
            bucket = {**labels, **more, "le": _le(bound)}
            yield f"{name}_bucket", bucket, since_birth(held)
        yield f"{name}_count", {**labels, **more}, since_birth(1)
        yield f"{name}_sum", {**labels, **more}, since_birth(value)


def operator(states: Mapping[str, Values], policy: str = "fleet") -> Made:
    """A healthy operator with these numbers of sources."""
    labels = {**OPERATOR, "policy": policy}
    for state in ("listed", "matched", "unmatched", "ambiguous", "stale", "invalid", "conflicting"):
        yield "mx_operator_sources", {**labels, "state": state}, states.get(state, constant(0))
    yield "mx_operator_writes_total", {**labels, "result": "accepted"}, growing(0.8)
    yield "mx_operator_skips_total", {**labels, "reason": "unchanged"}, growing(3)
    yield "mx_operator_signal_age_seconds", {**labels, "signal": "exporter"}, constant(3)
    for dependency in ("prometheus", "server"):
        yield "mx_operator_dependency_up", {**labels, "dependency": dependency}, constant(1)
    yield "mx_operator_load_supported", labels, constant(1)
    yield "mx_operator_heartbeat_interval_seconds", labels, constant(30)
    yield "mx_operator_heartbeat_interval_configured_seconds", labels, constant(30)
    yield "mx_operator_server_clock_skew_seconds", labels, constant(0)


def cycles(typical: Values) -> Made:
    """The operator's histogram of cycles, one each two seconds."""
    yield "up", OPERATOR, constant(1)
    yield "mx_build_info", {**OPERATOR, "component": "operator", "version": "0.1.0"}, constant(1)
    bounds = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0)
    yield from histogram("mx_operator_cycle_duration_seconds", OPERATOR, bounds, typical, growing(0.5))


def idle() -> Iterator[Series]:
    """16 sources at rest: everything works, nobody pulls and nobody asks."""
    clock, made = Clock(), [*operator({"listed": constant(16), "matched": constant(16)}), *cycles(constant(0.03))]
    for number in range(2):
        made += node(number, 8)
    for number in range(16):
        source = Source(number, 0.01)
        made += [*ports(source, 2e7), *measured(source), *listed(source), *served(source, 0, constant(0.05))]
        made += pulled(number, "load_aware", 0.02, 1.5, 50_000)
    yield from ((name, labels, clock.samples(values)) for name, labels, values in made)


def broken() -> Iterator[Series]:
    """32 sources during a rollout in which half the pipeline fails, 25 minutes before the end."""
    clock, since = Clock(), -1500.0
    gone = until(since, 1, None)
    made: list[tuple[str, Labels, Values]] = []
    for number in range(4):
        for name, labels, values in node(number, 8):
            dead = number == 1 and name != "up"
            made.append((name, labels, _both(values, gone) if dead else values))
    made = [one for one in made if not (one[0] == "up" and one[1] == exporter(1))]
    made.append(("up", exporter(1), until(since, 1, 0)))
    for number in range(32):
        source = Source(number, 0.92 if number % 4 == 0 else 0.3)
        on_dead_node = source.node == 1
        for name, labels, values in (*ports(source, source.load * 50e9), *measured(source)):
            if name == "mx_exporter_target_up" and number in (18, 19):
                values = until(since, 1, 0)
            made.append((name, labels, _both(values, gone) if on_dead_node else values))
        lost = number % 3 == 0 or on_dead_node
        made += listed(source, _both(wave(source.load, number), gone) if lost else None)
        made += served(source, 6, until(since, 0.12, 0.6))
    made += _broken_node(since)
    made += _broken_operator(since)
    made += _broken_targets()
    for alert, severity, more in (
        ("MxPullsOnBusySource", "warning", {"policy": "random"}),
        ("MxCoverageLow", "warning", {"policy": "fleet"}),
        ("MxHeartbeatInterval", "warning", {"policy": "fleet"}),
        ("MxServerDropsLoad", "warning", {"policy": "fleet"}),
        ("MxExporterDown", "warning", {"instance": exporter(1)["instance"]}),
        ("MxWrongLinkDenominator", "warning", {"instance": exporter(2)["instance"], "device": "mlx5_3"}),
        ("MxEngineGaugeFrozen", "warning", {"k8s_pod_name": "llama-17"}),
        ("MxRolloutHurtsServing", "critical", {}),
    ):
        labels = {"alertname": alert, "alertstate": "firing", "severity": severity, **more}
        made.append(("ALERTS", labels, until(since + 300, 0, 1)))
    for name, labels, values in made:
        samples = clock.samples(values)
        yield name, labels, [one for one in samples if name != "ALERTS" or one[1] != "0.0"]


def _both(values: Values, while_true: Values) -> Values:
    return lambda at: values(at) if while_true(at) else None


def _broken_node(since: float) -> Made:
    """A port over its limit, a frozen gauge, an engine that refuses."""
    port = {**exporter(2), "device": "mlx5_3", "port": "1"}
    way = {**port, "hw_id": "mlx5_3/1", "network_io_direction": "transmit", "reason": "over_limit"}
    after = until(since, 0, 1)

    def only_after(at: float) -> float | None:
        return after(at) or None

    yield "mx_exporter_port_unknown", way, only_after
    errors: Values = lambda at: max(0.0, at - since)  # noqa: E731
    yield "mx_exporter_port_errors_total", {**port, "reason": "over_limit"}, errors
    for number, part, reason in (
        (17, "kv", "frozen"),
        (18, "kv", "refused"),
        (19, "kv", "timeout"),
        (19, "nic", "over_limit"),
    ):
        source = Source(number, 0.3)
        labels = {**exporter(source.node), **source.pod, "gpu": "", "part": part, "reason": reason}
        yield "mx_exporter_unknown", labels, only_after


def _broken_operator(since: float) -> Made:
    def turned(before: float, after: float) -> Values:
        return until(since, before, after)

    states = {
        "listed": constant(32),
        "matched": turned(32, 14),
        "unmatched": turned(0, 9),
        "stale": turned(0, 7),
        "ambiguous": turned(0, 2),
    }
    policy = {**OPERATOR, "policy": "fleet"}
    changed = {
        ("mx_operator_load_supported", ""): turned(1, 0),
        ("mx_operator_dependency_up", "prometheus"): lambda at: 0.0 if since < at < since + 400 else 1.0,
        ("mx_operator_server_clock_skew_seconds", ""): turned(0, 3.5),
        ("mx_operator_heartbeat_interval_seconds", ""): constant(10),
        ("mx_operator_writes_total", ""): lambda at: 1e6 + 0.8 * min(at, since) + 10_000,
        ("mx_operator_signal_age_seconds", ""): turned(3, 55),
    }
    for name, labels, values in operator(states):
        yield name, labels, changed.get((name, labels.get("dependency", "")), values)
    for reason in ("load_not_supported", "window_closed", "no_series"):
        yield "mx_operator_skips_total", {**policy, "reason": reason}, lambda at: max(0.0, at - since) * 2
    yield "mx_operator_writes_total", {**policy, "result": "failed"}, lambda at: max(0.0, at - since) * 0.1
    yield from cycles(turned(0.05, 3.0))


def _broken_targets() -> Made:
    for number in range(40):
        born, busy = 1500.0 - number * 36, number % 3 == 0
        outcome = "retry" if number % 7 == 3 else "success"
        yield from pulled(number, "random", 0.92 if busy else 0.3, 25.0 if busy else 4.0, born, outcome)
    for number in range(40, 52):
        yield from pulled(number, "random", 0.2, 1.5, 4000)
    labels = {**target(60), "policy": "random", "scheme": ""}
    yield "mx_p2p_list_sources_total", {**labels, "result": "error"}, until(-700, 0, 6)
    yield "mx_selector_chosen_unknown_total", labels, until(-600, 0, 11)
    yield "mx_selector_fallbacks_total", {**labels, "reason": "ValueError"}, until(-200, 0, 2)


def big(sources: int = 2000) -> Iterator[Series]:
    """Thousands of sources: only what the dashboards read, as dense as they read it."""
    sparse, dense = (
        Clock(3600, 240),
        {"hw_network_io_bytes_total", "mx_operator_skips_total", "mx_operator_writes_total"},
    )
    an_hour = {"mx_p2p_source_load", "mx_kv_cache_usage"}
    made: list[tuple[str, Labels, Values]] = []
    made += [*operator({"listed": constant(sources), "matched": constant(sources)}), *cycles(constant(0.5))]
    for number in range(sources // 8):
        made += node(number, 8)
    for number in range(sources):
        source = Source(number, (number * 7919 % 1000) / 1000)
        made += [*ports(source, source.load * 50e9), *measured(source), *listed(source)]
        made += [one for one in served(source, 6, constant(0.1)) if not one[0].startswith("vllm:time")]
        made += pulled(number, "load_aware", 0.3, 2.0, 100 if number % 2 else 50_000)
        port = {**exporter(source.node), "device": source.device, "port": "1"}
        made.append(("mx_exporter_port_errors_total", {**port, "reason": "reset"}, growing(0.001)))
        way = {**port, "hw_id": f"{source.device}/1", "network_io_direction": "transmit", "reason": f"r{number % 9}"}
        made.append(("mx_exporter_port_unknown", way, constant(1)))
        mine = {**target(number), "policy": "load_aware", "scheme": ""}
        picked = {**mine, "source_worker_id": Source(number * 31 % sources, 0).worker}
        made.append(("mx_p2p_source_selections_total", picked, constant(1)))
        made.append(("mx_selector_chosen_unknown_total", mine, constant(1)))
        made.append(("mx_selector_fallbacks_total", {**mine, "reason": "ValueError"}, constant(1)))
        lost = {**exporter(source.node), **source.pod, "gpu": "", "part": "kv", "reason": f"r{number % 30}"}
        made.append(("mx_exporter_unknown", lost, constant(1)))
    for name, labels, values in made:
        if name in dense or name.startswith("mx_operator_cycle") or name == "mx_exporter_port_errors_total":
            yield name, labels, sparse.samples(values, 210, 15)
        elif name in an_hour:
            yield name, labels, sparse.samples(values)
        else:
            yield name, labels, sparse.samples(values, 480)
    yield from _recorded(sparse)


def _recorded(clock: Clock) -> Iterator[Series]:
    """What the recording rules keep of such a fleet: a few jobs, models and engines."""
    for job in ("engine-a", "engine-b", "engine-c"):
        for kind in ("vllm", "sglang"):
            labels = {"job": job, "engine": kind, "model_name": MODEL}
            yield "mx:generation_tokens:rate5m", labels, clock.samples(constant(1000))
            for bound in (*TTFT, math.inf):
                name = "mx:time_to_first_token_seconds_bucket:rate5m"
                yield name, {**labels, "le": _le(bound)}, clock.samples(constant(10), 3 * 3600, 30)
    for policy in ("random", "load_aware", "rendezvous_hash", "headroom", "topology_aware"):
        for bound in (*TRANSFER, math.inf):
            for outcome in ("success", "retry", "fallback"):
                labels = {"job": "mx-client", "policy": policy, "outcome": outcome, "le": _le(bound)}
                yield "mx:p2p_transfer_seconds_bucket:pulls5m", labels, clock.samples(constant(9), 480)
        for bound in (*AGES, math.inf):
            labels = {"job": "mx-client", "policy": policy, "le": _le(bound)}
            yield "mx:selector_chosen_load_age_seconds_bucket:pulls5m", labels, clock.samples(constant(9), 480)
    for bound in (*TRANSFER, math.inf):
        labels = {"job": "mx-client", "outcome": "success", "le": _le(bound)}
        yield "mx:p2p_transfer_seconds_bucket:ever", labels, clock.samples(constant(9), 2 * 3600)
