"""Which pages to read: from the sources that discovery knows to targets, and to reasons where there is none."""

from __future__ import annotations

import collections
import dataclasses
import ipaddress
from collections.abc import Iterable, Mapping

from mx_exporter.model import Endpoint, Pod, Source

#: Tried in this order where an endpoint names no path: the second is TensorRT-LLM's, whose /metrics is JSON.
USUAL_PATHS = ("/metrics", "/prometheus/metrics")


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Target:
    """One port of one pod. Equal targets are the same one: it keeps its connection and its history."""

    pod: Pod
    port: int
    path: str | None
    scheme: str

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths to try."""
        return (self.path,) if self.path else USUAL_PATHS


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """What to scrape, and the reason of each pod that has nothing to scrape."""

    targets: tuple[Target, ...]
    refused: Mapping[Pod, str]


def plan(sources: Iterable[Source]) -> Plan:
    """Decide what to scrape.

    A port that two pods claim on one address (they share the node's) is nobody's: whose page it is cannot be told, and
    one pod's usage never becomes another's.
    """
    targets = {source.pod: [_target(source.pod, endpoint) for endpoint in source.endpoints] for source in sources}
    claims = collections.Counter((target.pod.ip, target.port) for own in targets.values() for target in own)
    kept: list[Target] = []
    refused: dict[Pod, str] = {}
    for pod, own in targets.items():
        good = [target for target in own if claims[pod.ip, target.port] == 1]
        if not _is_address(pod.ip):
            refused[pod] = "no_address"
        elif good:
            kept += good
        else:
            refused[pod] = "shared_address" if own else "no_endpoint"
    return Plan(tuple(kept), refused)


def _target(pod: Pod, endpoint: Endpoint) -> Target:
    return Target(pod, endpoint.port, endpoint.path, endpoint.scheme)


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
