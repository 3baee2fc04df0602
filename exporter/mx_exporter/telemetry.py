"""A snapshot as metrics: which families there are, and their points. Pure; `exposition` and `otlp` send them out.

The families are given in OpenTelemetry's words (semantic conventions for hardware where they exist). Units are empty on
purpose wherever a unit of `1` would make OTLP receivers call the metric by another name than a scrape does (`_ratio`).
A point exists only while the thing it describes does, because all points are made anew from each snapshot.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
import platform
from collections.abc import Callable, Iterator, Mapping

from mx_exporter.engines.status import ScrapeStatus
from mx_exporter.model import Direction, Flow, Pod, PortStatus, SourceLoad
from mx_exporter.snapshot import Snapshot

Attributes = Mapping[str, str]
Points = tuple[tuple[Attributes, float], ...]
_Reader = Callable[[Flow], float | None]


@dataclasses.dataclass(frozen=True, slots=True)
class Family:
    """A metric and its points. A counter is monotonic and cumulative."""

    name: str
    description: str
    unit: str
    points: Points
    counter: bool = False


def families(snapshot: Snapshot) -> tuple[Family, ...]:
    """All families with at least one point, in a fixed order."""
    made = (*_ports(snapshot), *map(_unique, _sources(snapshot)), *_own(snapshot))
    return tuple(family for family in made if family.points)


def _unique(family: Family) -> Family:
    """No label set twice, which a scrape would refuse: of two engines that call themselves the same, the larger."""
    points: dict[tuple[str, ...], tuple[Attributes, float]] = {}
    for attributes, value in family.points:
        kept = points.setdefault(tuple(attributes.values()), (attributes, value))
        if value > kept[1]:
            points[tuple(attributes.values())] = (attributes, value)
    return dataclasses.replace(family, points=tuple(points.values()))


def _ports(snapshot: Snapshot) -> Iterator[Family]:
    ports = tuple(snapshot.nics.statuses.values())
    yield Family(
        "hw.network.io",
        "Bytes that a port's own function moved since its device appeared.",
        "By",
        _flows(ports, lambda flow: flow.total),
        counter=True,
    )
    yield Family(
        "hw.network.bandwidth.limit",
        "What the port can carry in each direction; only while it is active.",
        "By/s",
        tuple((_port(port), port.limit) for port in ports if port.limit is not None),
    )
    yield Family(
        "hw.network.bandwidth.utilization",
        "Share of the limit in use over the window, virtual functions included in their physical port's.",
        "",
        _flows(ports, lambda flow: flow.utilization),
    )
    yield Family(
        "hw.network.bandwidth.utilization.peak",
        "Highest utilization between two samples of the last 30 seconds.",
        "",
        _flows(ports, lambda flow: flow.peak),
    )
    yield Family(
        "hw.network.up",
        "1 while the port is active, else 0.",
        "",
        tuple((_port(port), int(port.up)) for port in ports if port.up is not None),
    )
    yield Family(
        "mx.exporter.port.unknown",
        "1 while a direction of a port has no utilization, by reason.",
        "",
        tuple(_port_unknown(ports)),
    )
    yield Family(
        "mx.exporter.port.errors",
        "What of a port could not be read or believed, by reason.",
        "",
        tuple(
            ({"device": device, "port": port, "reason": reason}, count)
            for (device, port, reason), count in sorted(snapshot.nics.errors.items())
        ),
        counter=True,
    )


def _flows(ports: tuple[PortStatus, ...], read: _Reader) -> Points:
    values = ((port, direction, read(port.flow(direction))) for port in ports for direction in Direction)
    return tuple((_direction(port, direction), value) for port, direction, value in values if value is not None)


def _port_unknown(ports: tuple[PortStatus, ...]) -> Iterator[tuple[Attributes, float]]:
    for port in ports:
        for direction in Direction:
            reason = port.flow(direction).reason
            if reason is not None:
                yield {**_direction(port, direction), "reason": reason}, 1


def _sources(snapshot: Snapshot) -> Iterator[Family]:
    yield Family(
        "mx.kv_cache.usage",
        "Share of an engine's KV cache that is in use.",
        "",
        tuple(
            ({**_pod(pod), "engine": usage.engine, "engine_index": usage.engine_index}, usage.value)
            for pod, usages in snapshot.usages.items()
            for usage in usages
            if usage.value is not None
        ),
    )
    yield Family(
        "mx.source.load",
        "Load of a source in [0, 1]: the larger of its NICs' utilization and its KV cache usage.",
        "",
        tuple(
            ({**_pod(load.pod), "gpu": load.gpu, "nic_mapping": load.mapping.value}, load.load)
            for load in snapshot.loads
            if load.load is not None
        ),
    )
    yield Family(
        "mx.exporter.unknown",
        "1 while a part of a source's load is not known, by reason.",
        "",
        tuple(_unknown(snapshot.loads)),
    )
    yield Family(
        "mx.exporter.target.up",
        "1 when the last scrape of an engine's page gave a reading, else 0.",
        "",
        tuple((_target(one), int(one.up)) for one in snapshot.scrapes),
    )
    yield Family(
        "mx.exporter.target.scrape.duration",
        "Seconds the last scrape of an engine's page took.",
        "s",
        tuple((_target(one), one.duration) for one in snapshot.scrapes),
    )
    yield Family(
        "mx.exporter.target.bad_lines",
        "Lines of wanted metrics on an engine's pages that could not be read.",
        "",
        tuple((_target(one), one.bad_lines) for one in snapshot.scrapes),
        counter=True,
    )


def _unknown(loads: tuple[SourceLoad, ...]) -> Iterator[tuple[Attributes, float]]:
    seen = set()
    for load in loads:
        for part, reason in load.unknown:
            key = (load.pod, load.gpu if part == "nic" else "", part, reason)
            if key not in seen:
                seen.add(key)
                yield {**_pod(load.pod), "gpu": key[1], "part": part, "reason": reason}, 1


def _own(snapshot: Snapshot) -> Iterator[Family]:
    def single(name: str, description: str, unit: str, value: float | None) -> Family:
        return Family(name, description, unit, () if value is None else (({}, value),))

    yield single("mx.exporter.sample.timestamp", "When the last tick ended, since 1970.", "s", snapshot.wall)
    yield single("mx.exporter.sample.duration", "How long the last tick took.", "s", snapshot.duration)
    yield single("mx.exporter.ports", "RDMA ports seen on this node.", "", len(snapshot.nics.statuses))
    yield single("mx.exporter.sources", "Sources that discovery knows on this node.", "", len(snapshot.sources))
    yield single("mx.exporter.discovery.age", "Since the sources were last confirmed.", "s", snapshot.discovery_age)
    yield Family("mx.build.info", "1; what is running.", "", ((build_info(), 1),))


@functools.cache
def build_info() -> Attributes:
    """The labels of mx_build_info."""
    return {
        "component": "exporter",
        "version": importlib.metadata.version("mx-source-load"),
        "python": platform.python_version(),
    }


def _port(port: PortStatus) -> Attributes:
    return {"hw.id": port.port.hw_id, "device": port.port.device, "port": str(port.port.port)}


def _direction(port: PortStatus, direction: Direction) -> Attributes:
    return {**_port(port), "network.io.direction": direction.value}


def _target(scrape: ScrapeStatus) -> Attributes:
    return {**_pod(scrape.pod), "target_port": str(scrape.port)}


def _pod(pod: Pod) -> Attributes:
    return {
        "k8s.namespace.name": pod.namespace,
        "k8s.pod.name": pod.name,
        "k8s.pod.uid": pod.uid,
        "k8s.pod.ip": pod.ip,
    }
