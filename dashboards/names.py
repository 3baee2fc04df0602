"""The selectors that several dashboards use: whose series they are, and by which labels a thing is one thing."""

from __future__ import annotations

from typing import Final

from dashboards.promql import greatest, quantile, select, total

#: Loads as the MX server lists them, from the operator. Selectors' own series of that name have no `origin`.
EVERY_LISTED: Final = greatest(("source_worker_id", "model_name"), select("mx_p2p_source_load", origin="listing"))
#: The same of the chosen models.
LISTED: Final = greatest(
    ("source_worker_id", "model_name"), select("mx_p2p_source_load", 'model_name=~"$model"', origin="listing")
)
#: All READY rows, with or without a load.
ROWS: Final = f"group by (source_worker_id) ({select('mx_p2p_source_info')})"
#: Each row's address; 1. One for each worker, whatever several operators say: a second would spoil every join.
_PLACES: Final = "topk by (source_worker_id) (1, {})".format(
    greatest(("source_worker_id", "k8s_pod_ip"), select("mx_p2p_source_info", 'k8s_pod_ip!=""'))
)
_PODS: Final = f"group by (k8s_pod_ip, k8s_pod_name) ({select('mx_source_load')})"
#: Pods by address; 1. Those that share one (hostNetwork) are left out: it cannot be told which is meant.
_PODS_APART: Final = f"({_PODS} and on (k8s_pod_ip) (count by (k8s_pod_ip) ({_PODS}) == 1))"
_PLACED: Final = (
    f"({LISTED} * on (source_worker_id) group_left (k8s_pod_ip) {_PLACES} or on (source_worker_id) {LISTED})"
)
#: LISTED with its pod's address and name, as far as they are known.
LISTED_PODS: Final = (
    f"{_PLACED} * on (k8s_pod_ip) group_left (k8s_pod_name) {_PODS_APART} or on (source_worker_id) {_PLACED}"
)
#: Loads as the exporters measure them.
MEASURED: Final = greatest(
    ("k8s_namespace_name", "k8s_pod_name", "k8s_pod_ip", "gpu", "nic_mapping"), select("mx_source_load")
)
#: Sources that cycles of the operator did not write, a second.
SKIPS: Final = total(("reason",), f"rate({select('mx_operator_skips_total')}[$__rate_interval])")
NEEDS_SELECTOR: Final = "needs our selector (mx_selector_*) in the targets"
NEEDS_OPERATOR: Final = "No listing: is mx-operator scraped?"
NEEDS_EXPORTER: Final = "No exporter: is mx-exporter scraped?"
NEEDS_TARGETS: Final = "No target's metrics: MX_METRICS_ENABLED=1, and scrape port 9402"
NOT_WRITTEN: Final = "not exported (--written-metrics=on), or none yet"
NO_SOURCE_LABEL: Final = "label not exported: MX_METRICS_SOURCE_ID_LABEL=1 on the targets adds source_worker_id"


def cycle(q: float) -> str:
    """A quantile of the time that the operator's cycles take, in seconds."""
    return quantile(q, (), f"rate({select('mx_operator_cycle_duration_seconds_bucket')}[$__rate_interval])")
