"""The node exporter: one honest load for every source of weights on this node.

`mx-exporter` is the door (`cli`); `make_source_load_provider` gives the same number inside a worker's own process. The
parts that talk (`nics`, `discovery`, `engines`, `mapping.kubelet`) hand frozen values (`model`) to the parts that
decide (`nics.tracks`, `nics.ports`, `mapping.assignments`, `blend`); `ticker` joins them into one `snapshot` a tick,
and `serving` and `otlp` show that.
"""

from mx_exporter.provider import make_source_load_provider

__all__ = ["make_source_load_provider"]
