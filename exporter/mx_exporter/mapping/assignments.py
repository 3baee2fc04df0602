"""Which ports count for a source: what it says itself, else what it was given, else what is nearest, else the busiest.

Pure: a source, the ports of this tick and the places of its GPUs make its assignments. The order is the order of
trust, and the label `nic_mapping` says which one it was.
"""

from __future__ import annotations

import collections
import fnmatch
from collections.abc import Iterable
from collections.abc import Mapping as MappingType

from mx_exporter.model import Assignment, Device, Mapping, Place, PortId, PortStatus, Source

Statuses = MappingType[PortId, PortStatus]
# Ports slower than this share of the fastest are not for weights: management, storage.
_COMPUTE_SHARE = 0.5


def assign(source: Source, statuses: Statuses, places: MappingType[int, Place]) -> tuple[Assignment, ...]:
    """The assignments of one source: one for the pod, or one per GPU where its GPUs use different ports.

    Args:
        source: The source, as discovery found it.
        statuses: All ports of this node.
        places: The places of the source's GPUs, by index inside the container.
    """
    pinned = _pinned(source, statuses)
    if pinned:
        return _merged(pinned)
    mapping, ports = _named(source, statuses)
    if mapping is Mapping.PCI and not ports:
        return (Assignment("", Mapping.PCI, (), "nic_not_visible"),)
    if mapping is None:
        mapping, ports = Mapping.AFFINITY, compute_ports(statuses)
    if not ports:
        reason = "no_active_port" if statuses else "no_nic"
        return (Assignment("", Mapping.NONE, (), reason),)
    return _merged([_nearest(gpu.index, mapping, ports, statuses, places) for gpu in source.gpus]) or (
        _whole(mapping, ports),
    )


def _pinned(source: Source, statuses: Statuses) -> list[Assignment]:
    """One assignment per GPU from a list of pins; empty when there is no list or none of it is here."""
    matched = [_matching((pin,), statuses) for pin in source.nic_pins]
    if not any(matched):
        return []
    indices = [gpu.index for gpu in source.gpus] or range(len(matched))
    found = []
    for index in indices:
        ports = matched[index] if index < len(matched) else ()
        found.append(Assignment(str(index), Mapping.EXPLICIT, ports, None if ports else "nic_not_visible"))
    return found


def _named(source: Source, statuses: Statuses) -> tuple[Mapping | None, tuple[PortId, ...]]:
    """The ports that a source names, or that a device plugin gave it; None when neither says anything of use."""
    ports = _matching(source.nic_devices, statuses)
    if ports:
        return Mapping.EXPLICIT, ports
    if source.nic_addresses:
        wanted = frozenset(source.nic_addresses)
        return Mapping.PCI, tuple(port for port, status in statuses.items() if _addresses(status.device) & wanted)
    return None, ()


def _addresses(device: Device) -> frozenset[str]:
    return frozenset((device.pci_address or "", *device.bonded_addresses))


def _matching(names: Iterable[str], statuses: Statuses) -> tuple[PortId, ...]:
    """The ports that names mean: `mlx5_0`, `mlx5_0:1`, patterns of either."""
    patterns = [(device, port) for device, _, port in (name.partition(":") for name in names)]
    return tuple(
        port
        for port in statuses
        if any(fnmatch.fnmatchcase(port.device, name) and number in ("", str(port.port)) for name, number in patterns)
    )


def compute_ports(statuses: Statuses) -> tuple[PortId, ...]:
    """The active ports of physical functions that are fast enough to carry weights.

    A port whose rate cannot be told stays in: leaving it out would pass a busy rail for an idle one.
    """
    active = {
        port: status for port, status in statuses.items() if status.up and status.device.physical_function is None
    }
    fastest = max((status.limit for status in active.values() if status.limit), default=0.0)
    return tuple(
        port for port, status in active.items() if status.limit is None or status.limit >= fastest * _COMPUTE_SHARE
    )


def _nearest(
    index: int,
    mapping: Mapping,
    ports: tuple[PortId, ...],
    statuses: Statuses,
    places: MappingType[int, Place],
) -> Assignment:
    """The ports nearest to one GPU among these; all of them when its place says nothing about any."""
    place = places.get(index)
    ranks = {port: _nearness(place, statuses[port].device) for port in ports} if place else {}
    best = max(ranks.values(), default=(0, False))
    if best == (0, False):
        return _whole(mapping, ports, str(index))
    return Assignment(str(index), mapping, tuple(port for port, rank in ranks.items() if rank == best))


def _nearness(place: Place, device: Device) -> tuple[int, bool]:
    """PCI bridges in common, then the NUMA node: larger is nearer."""
    common = 0
    for ours, theirs in zip(place.path, device.pci_path, strict=False):
        if ours != theirs:
            break
        common += 1
    return common, place.numa_node is not None and place.numa_node == device.numa_node


def _whole(mapping: Mapping, ports: tuple[PortId, ...], gpu: str = "") -> Assignment:
    """All the ports; without a name, an address or a place to go by, the busiest of them is what counts."""
    return Assignment(gpu, Mapping.BUSIEST if mapping is Mapping.AFFINITY else mapping, ports)


def _merged(assignments: list[Assignment]) -> tuple[Assignment, ...]:
    """One for the pod when all GPUs share the same ports, as they are otherwise; empty when there are none."""
    kinds = collections.Counter((one.mapping, one.ports, one.reason) for one in assignments)
    if len(kinds) == 1:
        (mapping, ports, reason), _ = kinds.most_common(1)[0]
        return (Assignment("", mapping, ports, reason),)
    return tuple(assignments)
