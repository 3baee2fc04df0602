"""One load per source: the larger of what its NICs carry and what its engine's cache holds, of what is known of them.

Pure. Unknown stays unknown with its reason: no part is ever filled in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from mx_exporter import model
from mx_exporter.model import Assignment, Pod, PortId, PortStatus, SourceLoad, Usage


def blend(
    pod: Pod,
    assignments: Iterable[Assignment],
    usages: Iterable[Usage],
    statuses: Mapping[PortId, PortStatus],
    carriers: Mapping[PortId, PortId],
) -> tuple[SourceLoad, ...]:
    """The loads of one source: one for the pod, or one per GPU.

    Args:
        pod: The source's pod.
        assignments: The ports that count, as the mapping decided.
        usages: What its engines say.
        statuses: All ports of this node.
        carriers: For ports of virtual functions, the ports whose flows are those of the wire.
    """
    kv, unknown_kv = _kv(tuple(usages))
    loads = []
    for one in assignments:
        nic, reason = _nic(one, statuses, carriers)
        unknown = ((("nic", reason),) if reason else ()) + unknown_kv
        loads.append(SourceLoad(pod, one.gpu, one.mapping, nic, kv, unknown))
    return tuple(loads)


def _kv(usages: tuple[Usage, ...]) -> tuple[float | None, tuple[tuple[str, str], ...]]:
    """The fullest cache, and why others are not known; an engine that has no reading does not hide one that has."""
    known = [usage.value for usage in usages if usage.value is not None]
    reasons = sorted({usage.reason or "unknown" for usage in usages if usage.value is None})
    if not usages:
        reasons = ["no_engine"]
    return (max(known) if known else None), tuple(("kv", reason) for reason in reasons)


def _nic(
    assignment: Assignment, statuses: Mapping[PortId, PortStatus], carriers: Mapping[PortId, PortId]
) -> tuple[float | None, str | None]:
    """The busiest assigned port, or why it is not known.

    A port that is down carries nothing and is passed over. One whose flow is not known makes the whole unknown, since
    it may be the busiest; only where the ports were guessed at does one bad port not silence the others.
    """
    if assignment.reason:
        return None, assignment.reason
    wires = dict.fromkeys(carriers.get(port, port) for port in assignment.ports)
    readings = [_busier(statuses[wire]) for wire in wires if statuses[wire].up is not False]
    known = [value for value, _ in readings if value is not None]
    reasons = [reason for _, reason in readings if reason is not None]
    if not readings:
        return None, "down"
    if known and (not reasons or assignment.mapping is model.Mapping.BUSIEST):
        return max(known), None
    return None, reasons[0]


def _busier(status: PortStatus) -> tuple[float | None, str | None]:
    """The busier direction of a port; None when either is not known."""
    transmit, receive = status.transmit, status.receive
    if transmit.utilization is None or receive.utilization is None:
        return None, transmit.reason or receive.reason or "unknown"
    return max(transmit.utilization, receive.utilization), None
