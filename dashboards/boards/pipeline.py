"""MX / Pipeline health: does the load get from the hosts to the targets, and where does it stop?

From left to right and top to bottom as the load goes: exporters, what they do not know, the operator, the server, the
targets.
"""

from __future__ import annotations

from typing import Final

from grafana_foundation_sdk.models import dashboard

from dashboards import house, shell
from dashboards.house import Column, Query, Words
from dashboards.names import (
    EVERY_LISTED,
    NEEDS_EXPORTER,
    NEEDS_OPERATOR,
    NEEDS_SELECTOR,
    NEEDS_TARGETS,
    ROWS,
    SKIPS,
    cycle,
)
from dashboards.promql import greatest, known, nonzero, pulled, select, total

_STAMPS: Final = select("mx_exporter_sample_timestamp_seconds")
_SOURCES: Final = select("mx_operator_sources")
_COVERAGE: Final = ((None, "red"), (0.8, "orange"), (0.95, "green"))
_RATE: Final = "[$__rate_interval]"


def _state(state: str) -> str:
    """Sources of a state, each policy's once, however many operators report it."""
    return f"sum(max by (policy) ({select('mx_operator_sources', state=state)}))"


def pipeline() -> dashboard.Dashboard:
    """The dashboard."""
    rows = (
        ("Is the load getting through?", [(4, 4, _answers()), (14, 8, [_alerts()]), (10, 8, [_coverage()])]),
        ("Exporters", [(12, 8, [_unknown(), _ports()]), (8, 7, [_ticks(), _targets(), _port_errors()])]),
        (
            "Operator",
            [
                (12, 7, [_dependencies(), _states()]),
                (8, 8, [_writes(), _skips(), _cycles()]),
                (8, 7, [_signal_ages(), _heartbeats(), _clocks()]),
            ],
        ),
        ("Server and targets", [(8, 8, [_listings(), _fallbacks(), _server()]), (24, 6, [_builds()])]),
    )
    return shell.dashboard_of("MX / Pipeline health", "mx-pipeline", __doc__, rows)


def _answers() -> list[dashboard.Panel]:
    exporters = f"group by (job) ({_STAMPS} or {_STAMPS} offset 15m)"
    matched = f"{_state('matched')} / ({_state('listed')} > 0)"
    listed = f"count(group by (source_worker_id) ({EVERY_LISTED})) / count({ROWS})"
    writes = f"sum(rate({select('mx_operator_writes_total', result='accepted')}{_RATE}))"
    return [
        house.number(
            Words(
                "Exporters",
                "How many answer their scrapes, and how many targets of the same job do not. "
                "Metric: `mx_exporter_sample_timestamp_seconds`, `up`.",
                NEEDS_EXPORTER,
            ),
            [
                Query(f"count({_STAMPS})", "up"),
                Query(f"sum(({select('up')} == bool 0) and on (job) {exporters})", "down"),
            ],
            beside=[house.Beside("down", "short", house.BAD_IF_ANY)],
        ),
        house.number(
            Words(
                "Measured",
                "Share of the listed sources that the operator has a fresh reading of. Metric: `mx_operator_sources`.",
                NEEDS_OPERATOR,
            ),
            [Query(matched)],
            unit="percentunit",
            steps=_COVERAGE,
        ),
        house.number(
            Words(
                "Listed with a load",
                "Share of the READY sources whose row carries a load, so that targets can use it. "
                "Metric: `mx_p2p_source_load`, `mx_p2p_source_info`.",
                "No load is listed",
            ),
            [Query(listed)],
            unit="percentunit",
            steps=_COVERAGE,
        ),
        house.number(
            Words(
                "Loads are kept",
                "Whether the server keeps them: written loads are read back. Metric: `mx_operator_load_supported`.",
                "Not tried yet",
            ),
            [Query(f"min({select('mx_operator_load_supported')})")],
            steps=house.GOOD_IF_ONE,
            mappings=[house.values({"1": ("yes", "green"), "0": ("NO", "red")})],
        ),
        house.number(
            Words(
                "Operator",
                "Writes that the server accepted, a second (none is right while no load changes), and the 95th "
                "percentile of its cycles. Metric: `mx_operator_writes_total`, `mx_operator_cycle_duration_seconds`.",
                NEEDS_OPERATOR,
            ),
            [
                Query(f"{writes} or 0 * {_state('listed')}", "writes"),
                Query(cycle(0.95), "cycle p95"),
            ],
            unit="wps",
            decimals=2,
            mappings=[house.nothing("none")],
            beside=[house.Beside("cycle p95", "s", ((None, "green"), (2, "orange"), (5, "red")))],
        ),
        house.number(
            Words("Alerts firing", "Of this product. Metric: `ALERTS`.", "Are the rules installed?"),
            [Query('count(ALERTS{alertname=~"Mx.+", alertstate="firing"}) or 0 * count(up)')],
            steps=house.BAD_IF_ANY,
        ),
    ]


def _alerts() -> dashboard.Panel:
    where = ("alertname", "severity", "policy", "instance", "k8s_pod_name", "device")
    firing = greatest(where, 'ALERTS{alertname=~"Mx.+", alertstate="firing"}')
    return house.rows(
        Words(
            "Alerts",
            "Firing now; each has a page in docs/runbooks. Metric: `ALERTS`.",
            "No alert is firing (or the rules are not installed)",
        ),
        [Query(firing)],
        [
            Column("alertname", "Alert", width=180),
            Column("severity", "Severity", width=80, words=(("critical", "red"), ("warning", "orange"))),
            Column("policy", "Policy"),
            Column("instance", "Instance", width=125),
            Column("k8s_pod_name", "Pod"),
            Column("device", "Device", width=65),
        ],
        sort="Severity",
    )


def _coverage() -> dashboard.Panel:
    def of(matcher: str) -> str:
        return f"sum by (state) ({greatest(('policy', 'state'), select('mx_operator_sources', matcher))})"

    return house.lines(
        Words(
            "Sources by what is known of them",
            "Matched have a fresh reading. Unmatched: no series is theirs (join label?); ambiguous: several could be; "
            "stale: the sample is too old; invalid: NaN or infinite; conflicting: another policy's. "
            "Metric: `mx_operator_sources`.",
            NEEDS_OPERATOR,
        ),
        [Query(of('state="matched"'), "{{state}}"), Query(nonzero(of('state!~"listed|matched"')), "{{state}}")],
        stacked=True,
        colors=(
            ("/^matched/", "green"),
            ("/^unmatched/", "orange"),
            ("/^ambiguous/", "yellow"),
            ("/^stale/", "red"),
            ("/^invalid/", "purple"),
            ("/^conflicting/", "blue"),
        ),
    )


def _unknown() -> dashboard.Panel:
    return house.lines(
        Words(
            "Parts of a load that are unknown, by reason",
            "Sources of which the NIC or the cache is not known. docs/exporter.md explains every reason. "
            "Metric: `mx_exporter_unknown`.",
            "Nothing is unknown, or no exporter is scraped",
        ),
        [Query(total(("part", "reason"), select("mx_exporter_unknown")), "{{part}} {{reason}}")],
        stacked=True,
    )


def _ports() -> dashboard.Panel:
    return house.lines(
        Words(
            "Ports without utilization, by reason",
            "Directions of ports. down is a port without a cable or peer; over_limit a wrong link speed; "
            "baseline lasts two seconds. Metric: `mx_exporter_port_unknown`.",
            "Every port has one, or no exporter is scraped",
        ),
        [Query(total(("reason",), select("mx_exporter_port_unknown")), "{{reason}}")],
        stacked=True,
    )


def _ticks() -> dashboard.Panel:
    seconds = select("mx_exporter_sample_duration_seconds")
    return house.lines(
        Words(
            "Exporter's tick",
            "Time to read a node's counters: the slowest node and the median; and how old the oldest tick is. "
            "Metric: `mx_exporter_sample_duration_seconds`, `mx_exporter_sample_timestamp_seconds`.",
            NEEDS_EXPORTER,
        ),
        [
            Query(f"max({seconds})", "slowest"),
            Query(f"quantile(0.5, {seconds})", "median"),
            Query(f"max(timestamp({_STAMPS}) - {_STAMPS})", "oldest tick at its scrape"),
        ],
        unit="s",
        calcs=("lastNotNull",),
    )


def _targets() -> dashboard.Panel:
    up = select("mx_exporter_target_up")
    return house.lines(
        Words(
            "Engine pages",
            "How many of the engines' pages give a reading. Metric: `mx_exporter_target_up`.",
            "No engine endpoint known",
        ),
        [Query(f"sum({up})", "read"), Query(nonzero(f"sum(1 - {up})"), "not read")],
        stacked=True,
        colors=(("/^read/", "green"), ("/^not read/", "red")),
        calcs=("lastNotNull",),
    )


def _port_errors() -> dashboard.Panel:
    errors = f"rate({select('mx_exporter_port_errors_total')}{_RATE})"
    return house.lines(
        Words(
            "Counters that could not be read or believed",
            "A second, by reason. Metric: `mx_exporter_port_errors_total`.",
            "None, or no exporter is scraped",
        ),
        [Query(total(("reason",), errors), "{{reason}}")],
        unit="cps",
        at_least=1,
        calcs=("lastNotNull",),
    )


_UP: Final = {"1": ("yes", "green"), "0": ("NO", "red")}


def _dependencies() -> dashboard.Panel:
    return house.states(
        Words(
            "What the operator depends on",
            "Whether Prometheus answers, the server lists, and written loads come back, by policy. "
            "Metric: `mx_operator_dependency_up`, `mx_operator_load_supported`.",
            NEEDS_OPERATOR,
        ),
        [
            Query(
                f"min by (policy, dependency) ({select('mx_operator_dependency_up')})",
                "{{policy}} {{dependency}} answers",
            ),
            Query(f"min by (policy) ({select('mx_operator_load_supported')})", "{{policy}} loads come back"),
        ],
        [house.values(_UP)],
        steps=house.GOOD_IF_ONE,
    )


def _states() -> dashboard.Panel:
    per = f"max by (policy) ({select('mx_operator_sources', state='matched')})"
    of = f"max by (policy) ({select('mx_operator_sources', state='listed')})"
    return house.lines(
        Words(
            "Coverage by policy",
            "Share of the listed sources with a fresh reading. Metric: `mx_operator_sources`.",
            NEEDS_OPERATOR,
        ),
        [Query(f"{per} / ({of} > 0)", "{{policy}}")],
        unit="percentunit",
        top=1,
        limit=0.8,
    )


def _writes() -> dashboard.Panel:
    writes = total(("policy", "result"), f"rate({select('mx_operator_writes_total')}{_RATE})")
    return house.lines(
        Words(
            "Writes by result",
            "A second. refused: the row is gone; denied: credentials; failed: no answer. "
            "Metric: `mx_operator_writes_total`.",
            "No write yet, or no operator is scraped",
        ),
        [Query(writes, "{{policy}} {{result}}")],
        colors=(("/accepted$/", "green"), ("/refused$/", "orange"), ("/denied$/", "purple"), ("/failed$/", "red")),
        unit="wps",
        calcs=("lastNotNull",),
    )


def _skips() -> dashboard.Panel:
    return house.lines(
        Words(
            "Skips by reason",
            "Sources a cycle did not write, a second. unchanged is the normal one; window_closed and no_heartbeat_yet "
            "pass by themselves. docs/operator.md explains all. Metric: `mx_operator_skips_total`.",
            NEEDS_OPERATOR,
        ),
        [Query(SKIPS, "{{reason}}")],
        unit="cps",
        calcs=("lastNotNull",),
    )


def _cycles() -> dashboard.Panel:
    return house.lines(
        Words(
            "Operator's cycles",
            "How long they take. Metric: `mx_operator_cycle_duration_seconds`.",
            NEEDS_OPERATOR,
        ),
        [Query(known(cycle(q)), f"p{100 * q:g}") for q in (0.5, 0.95, 0.99)],
        unit="s",
        calcs=("lastNotNull",),
    )


def _signal_ages() -> dashboard.Panel:
    return house.lines(
        Words(
            "Age of the signals",
            "Of each signal's youngest sample when a cycle used it: about the scrape interval. "
            "Metric: `mx_operator_signal_age_seconds`.",
            NEEDS_OPERATOR,
        ),
        [Query(f"max by (policy, signal) ({select('mx_operator_signal_age_seconds')})", "{{policy}} {{signal}}")],
        unit="s",
        calcs=("lastNotNull",),
    )


def _heartbeats() -> dashboard.Panel:
    def of(metric: str) -> str:
        return f"max by (policy) ({select(f'mx_operator_heartbeat_interval_{metric}')})"

    return house.lines(
        Words(
            "Heartbeat interval of the sources",
            "Median as seen; dashed what the policy says in sourceHeartbeat. They have to be the same. "
            "Metric: `mx_operator_heartbeat_interval_seconds`, `mx_operator_heartbeat_interval_configured_seconds`.",
            "Not seen yet",
        ),
        [
            Query(of("seconds"), "{{policy}} seen"),
            Query(of("configured_seconds"), "{{policy}} configured"),
        ],
        unit="s",
        dashed="/configured$/",
        calcs=("lastNotNull",),
    )


def _clocks() -> dashboard.Panel:
    return house.lines(
        Words(
            "Server replicas' clocks apart",
            "It lengthens the time a dead source stays listed. Metric: `mx_operator_server_clock_skew_seconds`.",
            "Not seen yet",
        ),
        [Query(f"max by (policy) (abs({select('mx_operator_server_clock_skew_seconds')}))", "{{policy}}")],
        unit="s",
        at_least=5,
        limit=2,
        calcs=("lastNotNull",),
    )


def _listings() -> dashboard.Panel:
    def of(matcher: str) -> str:
        return f"{total(('result',), pulled(select('mx_p2p_list_sources_total', matcher)))} / 5"

    return house.lines(
        Words(
            "Targets' listings",
            "A minute, by result. error: the server did not answer and the target goes to disk. "
            "Metric: `mx_p2p_list_sources_total`.",
            NEEDS_TARGETS,
        ),
        [Query(of('result="ok"'), "{{result}}"), Query(nonzero(of('result!="ok"')), "{{result}}")],
        colors=(("/^ok/", "green"), ("/^empty/", "orange"), ("/^error/", "red")),
        unit="cpm",
        stacked=True,
        calcs=("lastNotNull",),
    )


def _fallbacks() -> dashboard.Panel:
    fallbacks = total(("policy", "reason"), pulled(select("mx_selector_fallbacks_total")))
    unknown = total(("policy",), pulled(select("mx_selector_chosen_unknown_total")))
    return house.lines(
        Words(
            "Selections without a load",
            "A minute: first choices whose load was unknown, and policies that fell back to the baseline order. "
            "Metric: `mx_selector_chosen_unknown_total`, `mx_selector_fallbacks_total`.",
            f"None, or {NEEDS_SELECTOR}",
        ),
        [
            Query(f"{unknown} / 5", "{{policy}} unknown load"),
            Query(f"{fallbacks} / 5", "{{policy}} fell back: {{reason}}"),
        ],
        unit="cpm",
        calcs=("lastNotNull",),
    )


def _server() -> dashboard.Panel:
    requests = total(("rpc", "result"), f"rate({select('mx_server_requests_total')}{_RATE})")
    return house.lines(
        Words(
            "Embedded server's calls",
            "A second, by call and result; a fleet on another MX server has none. Metric: `mx_server_requests_total`.",
            "Not our embedded server",
        ),
        [Query(requests, "{{rpc}} {{result}}")],
        unit="reqps",
        calcs=("lastNotNull",),
    )


def _builds() -> dashboard.Panel:
    return house.rows(
        Words(
            "What runs",
            "Processes by component and version: several versions at once are a rollout of this product. "
            "Metric: `mx_build_info`.",
            "Nothing is scraped",
        ),
        [Query(f"count by (component, version, job) ({select('mx_build_info')})")],
        [
            Column("component", "Component"),
            Column("version", "Version"),
            Column("job", "Job"),
            Column("Value", "Processes", width=110),
        ],
    )
