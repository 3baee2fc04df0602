"""The selectors that several dashboards use: whose series they are, and by which labels a thing is one thing."""

from __future__ import annotations

from typing import Final

from dashboards.promql import greatest, select

#: Loads as the MX server lists them, from the operator. Selectors' own series of that name have no `origin`.
EVERY_LISTED: Final = greatest(("source_worker_id", "model_name"), select("mx_p2p_source_load", origin="listing"))
#: The same of the chosen models.
LISTED: Final = greatest(
    ("source_worker_id", "model_name"), select("mx_p2p_source_load", 'model_name=~"$model"', origin="listing")
)
#: All READY rows, with or without a load.
ROWS: Final = f"group by (source_worker_id) ({select('mx_p2p_source_info')})"
#: Where a row's pod is; 1.
PLACES: Final = greatest(("source_worker_id", "k8s_pod_ip", "k8s_pod_name"), select("mx_p2p_source_info"))
#: Loads as the exporters measure them.
MEASURED: Final = greatest(
    ("k8s_namespace_name", "k8s_pod_name", "k8s_pod_ip", "gpu", "nic_mapping"), select("mx_source_load")
)
NEEDS_SELECTOR: Final = "needs our selector (mx_selector_*) in the targets"
NEEDS_OPERATOR: Final = "No listing: is mx-operator scraped?"
NEEDS_EXPORTER: Final = "No exporter: is mx-exporter scraped?"
NEEDS_TARGETS: Final = "No target's metrics: MX_METRICS_ENABLED=1, and scrape port 9402"
NO_SOURCE_LABEL: Final = "label not exported: MX_METRICS_SOURCE_ID_LABEL=1 on the targets adds source_worker_id"
