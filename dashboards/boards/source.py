"""MX / Source: one source from its counters to its place among the candidates, with the age at every hop.

A source is chosen by its pod; what the server lists is found through the pod's address. Everything is of one moment:
where two hops differ, the ages beside them say whether that is delay or a fault.
"""

from __future__ import annotations

from typing import Final

from grafana_foundation_sdk.models import dashboard

from dashboards import house, shell
from dashboards.house import Column, Query, Words
from dashboards.names import EVERY_LISTED, NEEDS_EXPORTER, NEEDS_OPERATOR, NEEDS_SELECTOR, NOT_WRITTEN, SKIPS, cycle
from dashboards.promql import greatest, named, quantile, select, total

_MEASURED: Final = select("mx_source_load", k8s_pod_ip="$source")
_UNKNOWN: Final = select("mx_exporter_unknown", k8s_pod_ip="$source")
_NODE: Final = (
    "group by (instance) ("
    + select("", named("mx_source_load", "mx_exporter_unknown", "mx_exporter_target_up"), k8s_pod_ip="$source")
    + ")"
)
_HERE: Final = (
    f"and on (source_worker_id) group by (source_worker_id) ({select('mx_p2p_source_info', k8s_pod_ip='$source')})"
)
_LISTED: Final = f"({EVERY_LISTED} {_HERE})"
_WRITTEN: Final = f"({greatest(('source_worker_id',), select('mx_operator_written_load'))} {_HERE})"
#: The weight that the policy `headroom` gives a load: capacity left over, slowed by contention.
_WEIGHT: Final = f"clamp_min((1 - {EVERY_LISTED}) / (1 + 5.717 * {EVERY_LISTED}), 0.000001)"
#: Its weight against its model's average.
_FAIR: Final = f"({_WEIGHT} {_HERE}) / on (model_name) group_left () avg by (model_name) ({_WEIGHT})"
_USAGE: Final = select("mx_kv_cache_usage", k8s_pod_ip="$source")
_KEY: Final = ("instance", "device", "port")
_DEADBAND: Final = ((None, "green"), (0.06, "orange"), (0.2, "red"))
_AGE: Final = ((None, "green"), (20, "orange"), (40, "red"))
#: A row is stamped by each heartbeat (30 s) and each write; an unchanged load is not written again.
_ROW_AGE: Final = ((None, "green"), (35, "orange"), (60, "red"))
_REASONS: Final = "docs/exporter.md explains every reason"


def source() -> dashboard.Dashboard:
    """The dashboard."""
    rows = (
        ("$source: now, hop by hop", [(6, 3, _signal_hops()), (5, 4, _load_hops()), (4, 4, [_fair()])]),
        ("How old at each hop", [(4, 3, _ages())]),
        ("From counter to listing", [(24, 10, [_signals()]), (12, 8, [_unknown(), _share()])]),
        (
            "Its node's ports, its engine",
            [(12, 9, [_ports(), _flows()]), (8, 7, [_engine_up(), _engine_seconds(), _skips()])],
        ),
    )
    variable = shell.query("source", "Source", _choices(), many=False, regex=_NAMED)
    return shell.dashboard_of("MX / Source", "mx-source", __doc__, rows, [variable])


#: Shown by the pod's name, meant by its address.
_NAMED: Final = r'/k8s_pod_ip="(?<value>[^"]+)".*k8s_pod_name="(?<text>[^"]+)"/'


def _choices() -> str:
    """Pods that exporters know, then whoever else is listed, by address."""
    known = select("", named("mx_source_load", "mx_exporter_unknown", "mx_p2p_source_info"), 'k8s_pod_name!=""')
    anybody = select("mx_p2p_source_info", 'k8s_pod_ip!=""')
    listed = f"group by (k8s_pod_ip) ({anybody})"
    by_address = f'label_replace({listed}, "k8s_pod_name", "$1", "k8s_pod_ip", "(.+)")'
    return f"query_result(group by (k8s_pod_ip, k8s_pod_name) ({known}) or on (k8s_pod_ip) {by_address})"


def _signal_hops() -> list[dashboard.Panel]:
    used = f"max(({select('hw_network_bandwidth_utilization')}) and on (instance) {_NODE})"
    return [
        _share_of(
            "Node's top NIC",
            "The larger direction of its node's busiest port, its own or another's. "
            "Metric: `hw_network_bandwidth_utilization`.",
            "No port known",
            used,
        ),
        _share_of("KV cache", "Its fullest engine. Metric: `mx_kv_cache_usage`.", "No engine known", f"max({_USAGE})"),
        house.number(
            Words(
                "NICs found by",
                "How the exporter knows which ports are this source's: explicit, pci, affinity, or busiest (a guess: "
                "name them in the pod's MX_RDMA_NIC_PIN or UCX_NET_DEVICES). Metric: `mx_source_load`.",
                "Unknown",
            ),
            [Query(f"group by (nic_mapping) ({_MEASURED})", "{{nic_mapping}}")],
            name_only=True,
        ),
        house.number(
            Words(
                "Unknown parts",
                f"Parts of its load that are not known now; the timeline below names them. {_REASONS}. "
                "Metric: `mx_exporter_unknown`.",
                "No exporter knows it",
            ),
            [Query(f"count({_UNKNOWN}) or 0 * count({_MEASURED})")],
            steps=((None, "green"), (1, "orange")),
        ),
    ]


def _load_hops() -> list[dashboard.Panel]:
    return [
        _share_of(
            "Measured",
            "The larger of what is known of NIC and cache, as Prometheus has it from the exporter. "
            "Metric: `mx_source_load`.",
            "Unknown: see below",
            f"max({_MEASURED})",
        ),
        _wrote(),
        _share_of(
            "Listed",
            "What the server lists, so what targets see: the operator's last write, or the source's own word. "
            "Metric: `mx_p2p_source_load`.",
            "No load listed",
            f"max({_LISTED})",
        ),
        _share_of(
            "Off by",
            "How far measured and listed are apart. Within the operator's deadband (0.05) nothing is written. "
            "Metric: `mx_source_load`, `mx_p2p_source_load`.",
            "One is unknown",
            f"abs(max({_MEASURED}) - max({_LISTED}))",
            _DEADBAND,
        ),
    ]


def _share_of(title: str, said: str, empty: str, expr: str, steps: house.Steps = house.PLAIN) -> dashboard.Panel:
    """One number from 0 to 1, as a percentage."""
    return house.number(Words(title, said, empty), [Query(expr)], unit="percentunit", decimals=1, steps=steps)


def _wrote() -> dashboard.Panel:
    stamps = select("mx_operator_written_timestamp_seconds")
    return house.number(
        Words(
            "Operator wrote",
            "The last load that the operator wrote for it, and how long ago; an unchanged load is written again only "
            "when a heartbeat has taken it away. With --written-metrics=on (chart: operator.writtenMetrics). "
            "Metric: `mx_operator_written_load`, `mx_operator_written_timestamp_seconds`.",
            NOT_WRITTEN,
        ),
        [Query(f"max({_WRITTEN})", "load"), Query(f"time() - max(({stamps}) {_HERE})", "ago")],
        unit="percentunit",
        decimals=1,
        beside=[house.Beside("ago", "s", house.PLAIN, 0)],
    )


def _fair() -> dashboard.Panel:
    return house.number(
        Words(
            "Pulls vs fair",
            "How many first choices it gets under headroom, against an even split: 1 is its fair share, 0 none. "
            "Metric: `mx_p2p_source_load`.",
            "No load listed",
        ),
        [Query(f"max({_FAIR})")],
        unit=house.TIMES,
        decimals=2,
    )


def _ages() -> list[dashboard.Panel]:
    tick = f"time() - max(({select('mx_exporter_sample_timestamp_seconds')}) and on (instance) {_NODE})"
    ages = select("mx:selector_chosen_load_age_seconds_bucket:pulls5m")
    measured = [
        (
            "Exporter's tick",
            (
                "From the last look at the counters until now: about a second, plus the time since the scrape. "
                "Metric: `mx_exporter_sample_timestamp_seconds`."
            ),
            NEEDS_EXPORTER,
            tick,
        ),
        (
            "Scrape",
            "Age of the sample that Prometheus answers with. Metric: `mx_source_load`.",
            NEEDS_EXPORTER,
            f"time() - max(timestamp({_MEASURED}))",
        ),
        (
            "Operator's sample",
            (
                "Age of the youngest sample of the slowest signal, of all sources, in the operator's last cycle. "
                "Metric: `mx_operator_signal_age_seconds`."
            ),
            NEEDS_OPERATOR,
            f"max({select('mx_operator_signal_age_seconds')})",
        ),
        (
            "Operator's cycle",
            (
                "From the listing to the last write, of all sources, 95th percentile. "
                "Metric: `mx_operator_cycle_duration_seconds`."
            ),
            NEEDS_OPERATOR,
            cycle(0.95),
        ),
        (
            "Heartbeat",
            (
                "Median time between the heartbeats of a policy's sources: in the last tenth of it nothing is written. "
                "Metric: `mx_operator_heartbeat_interval_seconds`."
            ),
            NEEDS_OPERATOR,
            f"max({select('mx_operator_heartbeat_interval_seconds')})",
        ),
        (
            "Target's choice",
            (
                "Age of the listed row at selection, of all sources, 95th percentile; up to a heartbeat is right. "
                "Metric: `mx_selector_chosen_load_age_seconds`."
            ),
            NEEDS_SELECTOR,
            quantile(0.95, (), ages),
        ),
    ]
    return [
        house.number(
            Words(title, said, empty),
            [Query(expr)],
            unit="s",
            steps=_STEPS.get(title, _AGE),
            mappings=[house.nothing("none lately")],
        )
        for title, said, empty, expr in measured
    ]


_STEPS: Final = {
    "Heartbeat": house.PLAIN,
    "Target's choice": _ROW_AGE,
    "Operator's cycle": ((None, "green"), (2, "orange"), (5, "red")),
}


def _signals() -> dashboard.Panel:
    def port(direction: str) -> str:
        used = select("hw_network_bandwidth_utilization", network_io_direction=direction)
        return f"max(({used}) and on (instance) {_NODE})"

    return house.lines(
        Words(
            "Signals, blend, listing",
            "The same number at every hop. The blend is the larger of what is known; the listing follows it by some "
            "seconds and in steps of at least the deadband; dashed what the operator wrote, where it says so. "
            "Metric: `hw_network_bandwidth_utilization`, `mx_kv_cache_usage`, `mx_source_load`, "
            "`mx_operator_written_load`, `mx_p2p_source_load`.",
            NEEDS_EXPORTER,
        ),
        [
            Query(port("transmit"), "NIC transmit, busiest port of the node"),
            Query(port("receive"), "NIC receive, busiest port of the node"),
            Query(f"max by (engine, engine_index) ({_USAGE})", "KV cache {{engine}} {{engine_index}}"),
            Query(f"max by (gpu) ({_MEASURED})", "measured {{gpu}}"),
            Query(_WRITTEN, "written {{source_worker_id}}"),
            Query(f"max by (source_worker_id) ({_LISTED})", "listed {{source_worker_id}}"),
        ],
        unit="percentunit",
        top=1,
        bold="/^(measured|listed)/",
        dashed="/^written/",
    )


def _unknown() -> dashboard.Panel:
    return house.states(
        Words(
            "What is unknown, and why",
            f"A line while a part of its load is not known. {_REASONS}. Metric: `mx_exporter_unknown`.",
            "Nothing is unknown, or no exporter knows this source",
        ),
        [Query(f"max by (part, gpu, reason) ({_UNKNOWN})", "{{part}} {{gpu}} {{reason}}")],
        [house.values({"1": ("unknown", "orange")})],
    )


def _share() -> dashboard.Panel:
    return house.lines(
        Words(
            "Its place among the candidates",
            "First choices it gets under headroom, against an even split (1). Under load_aware a source with this "
            "load loses to any whose hash is higher by the difference in load. Metric: `mx_p2p_source_load`.",
            NEEDS_OPERATOR,
        ),
        [
            Query(f"max by (source_worker_id) ({_FAIR})", "{{source_worker_id}} under headroom"),
            Query(f"group({select('mx_p2p_source_info')})", "even split"),
        ],
        unit=house.TIMES,
        dashed="/^even/",
    )


def _ports() -> dashboard.Panel:
    def of(metric: str, **equal: str) -> Query:
        return Query(greatest(_KEY, f"{select(metric, **equal)} and on (instance) {_NODE}"))

    unknown = (
        f"group by (instance, device, port, reason) (({select('mx_exporter_port_unknown')}) and on (instance) {_NODE})"
    )
    return house.rows(
        Words(
            "Ports of its node",
            "Each against its own limit. A limit that is lower than the others' is a link that came up slow; a reason "
            "says why there is no utilization. Metric: `hw_network_up`, `hw_network_bandwidth_limit_bytes_per_second`, "
            "`hw_network_bandwidth_utilization`, `mx_exporter_port_unknown`.",
            NEEDS_EXPORTER,
        ),
        [
            of("hw_network_up"),
            of("hw_network_bandwidth_limit_bytes_per_second"),
            of("hw_network_bandwidth_utilization", network_io_direction="transmit"),
            of("hw_network_bandwidth_utilization", network_io_direction="receive"),
            Query(unknown),
        ],
        [
            Column("device", "Device", width=85),
            Column("port", "Port", width=45),
            Column("Value #A", "Up", steps=house.GOOD_IF_ONE, width=40),
            Column("Value #B", "Limit", "Bps", width=80),
            Column("Value #C", "Transmit", "percentunit", width=80),
            Column("Value #D", "Receive", "percentunit", width=75),
            Column("reason", "Unknown because"),
        ],
    )


def _flows() -> dashboard.Panel:
    rate = f"rate({select('hw_network_io_bytes_total')}[$__rate_interval]) and on (instance) {_NODE}"
    moved = total(("device", "network_io_direction"), rate)
    return house.lines(
        Words(
            "What its node's NICs move",
            "Serving and pulls together. Metric: `hw_network_io_bytes_total`.",
            NEEDS_EXPORTER,
        ),
        [Query(moved, "{{device}} {{network_io_direction}}")],
        unit="Bps",
    )


def _engine_up() -> dashboard.Panel:
    return house.states(
        Words(
            "Engine page",
            "Whether the last scrape of its engine's metrics gave a reading. Metric: `mx_exporter_target_up`.",
            "No engine endpoint known",
        ),
        [
            Query(
                f"min by (target_port) ({select('mx_exporter_target_up', k8s_pod_ip='$source')})",
                "port {{target_port}}",
            )
        ],
        [house.values({"1": ("read", "green"), "0": ("not read", "red")})],
    )


def _engine_seconds() -> dashboard.Panel:
    return house.lines(
        Words(
            "Time to read the engine's page",
            "Slow pages make old readings. Metric: `mx_exporter_target_scrape_duration_seconds`.",
            "No engine endpoint known",
        ),
        [
            Query(
                f"max by (target_port) ({select('mx_exporter_target_scrape_duration_seconds', k8s_pod_ip='$source')})",
                "port {{target_port}}",
            )
        ],
        unit="s",
    )


def _skips() -> dashboard.Panel:
    return house.lines(
        Words(
            "Why sources are not written",
            "Of the whole fleet: the operator counts reasons, not sources. unchanged is good news. "
            "Metric: `mx_operator_skips_total`.",
            NEEDS_OPERATOR,
        ),
        [Query(SKIPS, "{{reason}}")],
        unit="cps",
        calcs=("lastNotNull",),
    )
