"""Rates to utilization: each port against its own limit, virtual functions summed into their physical port.

A driver's counters are those of one function: on mlx5 the physical function's exclude its virtual functions'. What
fills the wire is the sum, so a physical function's flows are those of all functions of its port; a virtual function's
are its own share. When a part of the sum is not known, the sum is not (a lower bound would pass for headroom).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from mx_exporter.model import Count, Device, Direction, Flow, PortId, PortReading, PortStatus
from mx_exporter.nics import tracks
from mx_exporter.nics.tracks import Timing, Track

# More than this is no measurement but a wrong denominator; up to it, clocks and counters disagree a little.
OVER_LIMIT = 1.05

Peaks = tuple[tuple[float, float], ...]  # (when, utilization), oldest first
_NEW = Track()


@dataclasses.dataclass(frozen=True, slots=True)
class PortHistory:
    """What is remembered of one port from tick to tick."""

    device: Device
    reading: PortReading
    transmit: Track = _NEW
    receive: Track = _NEW
    transmit_peaks: Peaks = ()
    receive_peaks: Peaks = ()

    def track(self, direction: Direction) -> Track:
        """The track of one direction."""
        return self.transmit if direction is Direction.TRANSMIT else self.receive

    def peaks(self, direction: Direction) -> Peaks:
        """The peaks of one direction."""
        return self.transmit_peaks if direction is Direction.TRANSMIT else self.receive_peaks


Histories = Mapping[PortId, PortHistory]


@dataclasses.dataclass(frozen=True, slots=True)
class _Measured:
    """One direction of one wire at this tick: rates, or why there are none."""

    rate: float | None
    step: float | None
    reason: str | None


def advance(before: PortHistory | None, device: Device, reading: PortReading, timing: Timing) -> PortHistory:
    """A port's history after one more reading; a port not seen before starts a new one."""
    old = before or PortHistory(device, reading)
    transmit = _next(old.transmit, reading, reading.transmit, timing)
    receive = _next(old.receive, reading, reading.receive, timing)
    if "reset" in (transmit.reason, receive.reason):
        # The device began anew, so the other counter did too, even if it is higher by now than it was.
        transmit, receive = tracks.restarted(transmit), tracks.restarted(receive)
    return PortHistory(device, reading, transmit, receive, old.transmit_peaks, old.receive_peaks)


def _next(track: Track, reading: PortReading, count: Count, timing: Timing) -> Track:
    return tracks.advance(track, reading.identity, count, reading.limit, timing)


def functions(histories: Histories) -> dict[PortId, tuple[PortId, ...]]:
    """The virtual functions' ports that share a wire with each physical function's port."""
    owners: dict[tuple[str, int], PortId] = {}
    for port, history in histories.items():
        if history.device.physical_function is None and history.device.pci_address is not None:
            for address in (history.device.pci_address, *history.device.bonded_addresses):
                owners[address, port.port] = port
    shared: dict[PortId, list[PortId]] = {}
    for port, history in histories.items():
        owner = owners.get((history.device.physical_function or "", port.port))
        if owner is not None:
            shared.setdefault(owner, []).append(port)
    return {owner: tuple(ports) for owner, ports in shared.items()}


def carrier(port: PortId, shared: Mapping[PortId, tuple[PortId, ...]]) -> PortId:
    """The port whose flows are those of the wire that this port uses: its physical function's, or its own."""
    return next((owner for owner, ports in shared.items() if port in ports), port)


def settle(histories: Histories, timing: Timing) -> tuple[dict[PortId, PortHistory], dict[PortId, PortStatus]]:
    """The statuses of all ports at this tick, and the histories with this tick's peaks in them."""
    shared = functions(histories)
    settled: dict[PortId, PortHistory] = {}
    statuses: dict[PortId, PortStatus] = {}
    for port, history in histories.items():
        members = [histories[member] for member in shared.get(port, ())]
        transmit, transmit_peaks = _flow(history, members, Direction.TRANSMIT, timing)
        receive, receive_peaks = _flow(history, members, Direction.RECEIVE, timing)
        settled[port] = dataclasses.replace(history, transmit_peaks=transmit_peaks, receive_peaks=receive_peaks)
        statuses[port] = PortStatus(
            port, history.device, history.reading.active, history.reading.limit, transmit, receive
        )
    return settled, statuses


def _flow(
    history: PortHistory, members: Iterable[PortHistory], direction: Direction, timing: Timing
) -> tuple[Flow, Peaks]:
    measured = _wire(history, members, direction)
    limit = history.reading.limit
    utilization, reason = _ratio(measured.rate, measured.reason or _no_limit(history.reading), limit)
    highest, _ = _ratio(measured.step, reason, limit)
    track = history.track(direction)
    at = _count(history.reading, direction).at
    peaks = tuple(peak for peak in history.peaks(direction) if peak[0] > at - timing.peak)
    if highest is not None:
        peaks = (*peaks, (at, highest))
    peak = max((value for _, value in peaks), default=None)
    return Flow(track.total, measured.rate, utilization, peak, reason), peaks


def _wire(history: PortHistory, members: Iterable[PortHistory], direction: Direction) -> _Measured:
    own = history.track(direction)
    if own.reason is not None:
        return _Measured(None, None, own.reason)
    if history.device.hidden_functions:
        return _Measured(None, None, "hidden_functions")
    used = [own, *(member.track(direction) for member in members if member.reading.active is not False)]
    rates, steps = [tracks.rate(track) for track in used], [tracks.step(track) for track in used]
    if None in rates or None in steps:
        return _Measured(None, None, "baseline" if rates[0] is None else "function_unknown")
    return _Measured(sum(filter(None, rates)), sum(filter(None, steps)), None)


def _ratio(rate: float | None, reason: str | None, limit: float | None) -> tuple[float | None, str | None]:
    """A utilization in [0, 1], or why there is none."""
    if reason is not None or rate is None or limit is None:
        return None, reason or "baseline"
    ratio = rate / limit
    return (None, "over_limit") if ratio > OVER_LIMIT else (min(1.0, ratio), None)


def _no_limit(reading: PortReading) -> str | None:
    """Why there is nothing to divide by; None when there is."""
    if reading.limit is not None:
        return None
    if reading.active is False:
        return "down"
    faults = dict(reading.faults)
    return f"state_{faults['state']}" if "state" in faults else f"rate_{faults.get('rate', 'missing')}"


def _count(reading: PortReading, direction: Direction) -> Count:
    return reading.transmit if direction is Direction.TRANSMIT else reading.receive
