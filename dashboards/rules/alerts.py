"""The alerts: what is wrong, with which value, and what it does to targets; each has a page in docs/runbooks.

Expressions keep the labels that say where (policy, instance, pod, device) and drop what makes one fault many alerts.
None needs a per-source label of targets. Where a comparison needs a number, it stands here, beside its reason.
"""

from __future__ import annotations

from typing import Final

from dashboards.promql import pulled
from dashboards.rules.model import Alert, Severity

_CHOSEN: Final = "mx_selector_chosen_load"
_TTFT: Final = "mx:time_to_first_token_seconds_bucket:rate5m"
#: Reasons for which the operator wants to write and does not. What lacks a reading, is unchanged, is another policy's
#: or only observed is not wanted; `load_not_supported` and `multi_rank` have alerts of their own.
_HELD: Final = "no_heartbeat_yet|window_closed|no_updated_at|canary|budget|writes_denied|too_late"
#: What the interval seen may be of the configured one; the operator's condition HeartbeatMatches tolerates as much.
_SOONEST, _LATEST = 0.95, 1.2


def _state(state: str) -> str:
    return f'max by (policy) (mx_operator_sources{{state="{state}"}})'


def _grew(counter: str, by: str, window: str) -> str:
    return f"sum by ({by}) (increase({counter}[{window}]))"


def _ttft(buckets: str) -> str:
    return f"histogram_quantile(0.99, sum by (engine, model_name, le) ({buckets}))"


_BELOW: Final = f"sum by (job, policy) ({pulled(_CHOSEN + '_bucket{le=' + chr(34) + '0.7' + chr(34) + '}', '10m')})"
_ALL: Final = f"sum by (job, policy) ({pulled(_CHOSEN + '_count', '10m')})"
_PULLING: Final = f"sum({pulled('mx_p2p_transfer_seconds_count', '10m')}) > 0"
_WANTED: Final = _grew(f'mx_operator_skips_total{{reason=~"{_HELD}"}}', "policy", "15m")
_ACCEPTED: Final = _grew('mx_operator_writes_total{result="accepted"}', "policy", "15m") + " > 0"
_BEAT: Final = "max by (policy) (mx_operator_heartbeat_interval_seconds)"
_CONFIGURED: Final = "max by (policy) (mx_operator_heartbeat_interval_configured_seconds)"
_FAILED: Final = _grew('mx_operator_writes_total{result=~"refused|denied|failed"}', "policy", "15m")

ALERTS: Final = (
    Alert(
        "MxRolloutHurtsServing",
        f"({_ttft(_TTFT)} / {_ttft(f'avg_over_time({_TTFT}[1h] offset 1h)')} > 2) and on () ({_PULLING})",
        "5m",
        Severity.CRITICAL,
        "Time to first token has doubled while targets pull weights.",
        "The 99th percentile of the time to first token of {{ $labels.model_name }} on {{ $labels.engine }} is "
        '{{ printf "%.1f" $value }} times that of the hour before, and targets are pulling: the rollout may be taking '
        "bandwidth from sources that serve.",
    ),
    Alert(
        "MxPullsOnBusySource",
        f"(1 - {_BELOW} / {_ALL} > 0.25) and on (job, policy) ({_ALL} >= 5)"
        ' and on () (min(mx_p2p_source_load{origin="listing"}) < 0.7)',
        "5m",
        Severity.WARNING,
        "Targets pull from busy sources though others are idle.",
        "{{ $value | humanizePercentage }} of the last 10 minutes' first choices under {{ $labels.policy }} went to "
        "sources with a load above 0.7, while at least one source was below it.",
    ),
    Alert(
        "MxSourceHot",
        "min_over_time((max by (k8s_namespace_name, k8s_pod_name) (mx_source_load))[15m:30s]) >= 0.9",
        "5m",
        Severity.INFO,
        "A source has been saturated for a quarter of an hour.",
        "The load of {{ $labels.k8s_namespace_name }}/{{ $labels.k8s_pod_name }} has not been below "
        "{{ $value | humanizePercentage }} for 15 minutes: it is of no use as a source, and its own requests wait.",
    ),
    Alert(
        "MxLoadStale",
        f"{_state('stale')} / ({_state('listed')} > 0) > 0.05",
        "2m",
        Severity.WARNING,
        "Loads are too old to be written.",
        "{{ $value | humanizePercentage }} of the sources of policy {{ $labels.policy }} have a newest sample older "
        "than staleAfter: targets go on seeing the loads written before, until the sources' heartbeats reset them.",
    ),
    Alert(
        "MxCoverageLow",
        f"{_state('matched')} / ({_state('listed')} > 0) < 0.8",
        "10m",
        Severity.WARNING,
        "Many listed sources have no usable load.",
        "Only {{ $value | humanizePercentage }} of the READY sources of policy {{ $labels.policy }} have a fresh "
        "reading: targets choose among the rest as if nothing were known.",
    ),
    Alert(
        "MxOperatorNotWriting",
        f"(({_WANTED} > 0) or ({_FAILED} > 0)) unless on (policy) ({_ACCEPTED})",
        "10m",
        Severity.WARNING,
        "The operator has loads to write and none arrives.",
        "Policy {{ $labels.policy }} wanted to write {{ $value | humanize }} times within 15 minutes and the server "
        "accepted nothing: targets choose by old loads or none.",
    ),
    Alert(
        "MxServerDropsLoad",
        "min by (policy) (mx_operator_load_supported) == 0",
        "5m",
        Severity.WARNING,
        "The MX server does not store source_load.",
        "Loads written for policy {{ $labels.policy }} are not read back (mx_operator_load_supported is "
        "{{ $value }}): every target orders sources as if no load were known.",
    ),
    Alert(
        "MxExporterBlind",
        "(max by (instance) (mx_exporter_ports) > 0 unless on (instance) max by (instance) "
        "(hw_network_bandwidth_utilization) unless on (instance) max by (instance) (hw_network_up) == 0)"
        " or (max by (instance) (mx_exporter_ports) == 0 and on (instance) "
        "max by (instance) (mx_exporter_sources) > 0)",
        "5m",
        Severity.WARNING,
        "An exporter sees no traffic on a node that has ports or sources.",
        "The exporter {{ $labels.instance }} sees {{ $value }} ports and no utilization of any: the loads of its "
        "node's sources are of their caches only.",
    ),
    Alert(
        "MxWrongLinkDenominator",
        'max by (instance, device, port) (count_over_time(mx_exporter_port_unknown{reason="over_limit"}[10m])) > 0',
        "1m",
        Severity.WARNING,
        "A port moves more than its link speed allows.",
        "Port {{ $labels.port }} of {{ $labels.device }} on {{ $labels.instance }} was over its limit in {{ $value }} "
        "scrapes of the last 10 minutes: the link speed that its driver names is wrong, and its utilization with it.",
    ),
    Alert(
        "MxEngineGaugeFrozen",
        'max by (k8s_namespace_name, k8s_pod_name) (mx_exporter_unknown{part="kv", reason="frozen"}) == 1',
        "5m",
        Severity.WARNING,
        "An engine's cache gauge stands still.",
        "The KV cache gauge of {{ $labels.k8s_namespace_name }}/{{ $labels.k8s_pod_name }} has not moved while "
        "nothing else did (mx_exporter_unknown is {{ $value }}): the engine may have stopped counting, so its reading "
        "is not used.",
    ),
    Alert(
        "MxHeartbeatInterval",
        f"{_BEAT} > {_LATEST:g} * {_CONFIGURED} or {_BEAT} < {_SOONEST:g} * {_CONFIGURED}",
        "10m",
        Severity.WARNING,
        "Sources send heartbeats at another interval than configured.",
        "Sources of policy {{ $labels.policy }} send a heartbeat every {{ $value | humanizeDuration }}, which is not "
        "the policy's sourceHeartbeat: set it to what MX_HEARTBEAT_INTERVAL_SECS is, or writes come at the wrong "
        "time, or hardly at all.",
    ),
    Alert(
        "MxServerClocksApart",
        "max by (policy) (abs(mx_operator_server_clock_skew_seconds)) > 2",
        "10m",
        Severity.WARNING,
        "The clocks of the MX server's replicas differ.",
        "Replicas behind policy {{ $labels.policy }} stamp rows {{ $value | humanizeDuration }} apart: a dead source "
        "stays selectable that much longer.",
    ),
    Alert(
        "MxSeveralRanks",
        _grew('mx_operator_skips_total{reason="multi_rank"}', "policy", "10m") + " > 0",
        "5m",
        Severity.WARNING,
        "Several ranks are listed under one worker.",
        "Policy {{ $labels.policy }} skipped rows {{ $value | humanize }} times within 10 minutes because one worker "
        "id has several ranks: a write would hit the wrong one, so none is made.",
    ),
    Alert(
        "MxDependencyDown",
        "min by (policy, dependency) (mx_operator_dependency_up) == 0",
        "5m",
        Severity.WARNING,
        "The operator cannot reach Prometheus or the MX server.",
        "{{ $labels.dependency }} does not answer for policy {{ $labels.policy }} (mx_operator_dependency_up is "
        "{{ $value }}): loads are not written.",
    ),
    Alert(
        "MxOperatorStuck",
        "sum by (instance) (rate(mx_operator_cycle_duration_seconds_count[5m])) == 0",
        "5m",
        Severity.WARNING,
        "An operator answers scrapes but ends no cycle.",
        "{{ $labels.instance }} ended {{ $value }} cycles a second in 5 minutes: loads are not written.",
    ),
    Alert(
        "MxOperatorAbsent",
        "absent(mx_operator_cycle_duration_seconds_count)",
        "5m",
        Severity.WARNING,
        "No operator is scraped.",
        "Prometheus has no series of an operator (absent() is {{ $value }}): nobody writes loads, or nobody scrapes "
        "who does.",
    ),
    Alert(
        "MxExporterAbsent",
        "absent(mx_exporter_sample_timestamp_seconds)",
        "5m",
        Severity.WARNING,
        "No exporter is scraped.",
        "Prometheus has no series of an exporter (absent() is {{ $value }}): no load is measured, or nobody scrapes "
        "what is.",
    ),
    Alert(
        "MxExporterDown",
        "(up == 0) and on (job) group by (job) (mx_exporter_sample_timestamp_seconds)",
        "10m",
        Severity.WARNING,
        "An exporter does not answer.",
        "{{ $labels.instance }} of job {{ $labels.job }} has not answered its scrapes for 10 minutes (up is "
        "{{ $value }}): the sources of its node have no load.",
    ),
)
