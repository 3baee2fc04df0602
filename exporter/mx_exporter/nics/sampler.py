"""One tick of the NIC side: look at every port once, carry the histories on, count what could not be read.

Called by the exporter's own ticking thread and by `--once`; whoever wants another clock or tree gives one.
"""

from __future__ import annotations

import collections
import dataclasses
import logging
from collections.abc import Callable, Mapping

from mx_exporter.model import Device, PortId, PortStatus
from mx_exporter.nics import devices, ports
from mx_exporter.nics.readings import Limits, PortReader
from mx_exporter.nics.sysfs import Tree, UnreadableError
from mx_exporter.nics.tracks import Timing

_LOG = logging.getLogger("mx_exporter")
_REFRESH = 5.0  # seconds after which what is fixed about a device is read again all the same


@dataclasses.dataclass(frozen=True, slots=True)
class NicView:
    """All ports at one tick."""

    statuses: Mapping[PortId, PortStatus] = dataclasses.field(default_factory=dict)
    #: Port of a virtual function -> port whose flows are its wire's; only where the two differ.
    carriers: Mapping[PortId, PortId] = dataclasses.field(default_factory=dict)
    #: (device, port, reason) -> how often since the port appeared; port "" for the device as a whole.
    errors: Mapping[tuple[str, str, str], int] = dataclasses.field(default_factory=dict)
    #: What a person should know: that there are no ports, or that this is the wrong /sys.
    hint: str | None = None


@dataclasses.dataclass
class _Known:
    """What is fixed about a device, and when that was read."""

    device: Device
    at: float


class NicSampler:
    """Keeps the histories of all ports under one sysfs root. `tick` is for one thread at a time."""

    def __init__(self, tree: Tree, timing: Timing, clock: Callable[[], float], limits: Limits | None = None) -> None:
        self._tree = tree
        self._timing = timing
        self._clock = clock
        self._reader = PortReader(tree, clock, limits)
        self._known: dict[str, _Known] = {}
        self._histories: dict[PortId, ports.PortHistory] = {}
        self._errors: collections.Counter[tuple[str, str, str]] = collections.Counter()

    def tick(self) -> NicView:
        """Reads everything once. Never raises for anything that is on the tree."""
        try:
            names = devices.device_names(self._tree)
        except UnreadableError as error:
            return NicView(hint=f"{self._tree.root}/{devices.CLASS} cannot be listed: {error.reason}")
        self._describe(names)
        histories = {}
        for name in names:
            if name in self._known:
                histories.update(self._look(self._known[name].device))
        self._histories, statuses = ports.settle(histories, self._timing)
        self._count(statuses)
        shared = ports.functions(self._histories)
        carriers = {member: owner for owner, members in shared.items() for member in members}
        return NicView(statuses, carriers, dict(self._errors), self._hint(statuses))

    def _hint(self, statuses: Mapping[PortId, PortStatus]) -> str | None:
        where = f"{self._tree.root}/{devices.CLASS}"
        if not statuses:
            return f"no RDMA device under {where}"
        if any(status.transmit.reason == "no_counters_netns" for status in statuses.values()):
            return f"{where} is a pod's own view, without counters: mount the host's /sys and give it as --sysfs"
        return None

    def _describe(self, names: tuple[str, ...]) -> None:
        """Reads again what is fixed about each device that is new, came back, is bonded, or was not read lately."""
        by_name = None
        known: dict[str, _Known] = {}
        for name in names:
            identity = devices.identity(self._tree, name)
            if identity is None:
                continue  # it vanished while we walked
            old = self._known.get(name)
            if old is None or self._is_stale(old, identity):
                by_name = devices.addresses(self._tree, names) if by_name is None else by_name
                old = _Known(devices.describe(self._tree, name, identity, by_name), self._clock())
            known[name] = old
        self._known = known

    def _is_stale(self, known: _Known, identity: str) -> bool:
        bonded = known.device.rails != 1
        return identity != known.device.identity or bonded or self._clock() - known.at >= _REFRESH

    def _look(self, device: Device) -> dict[PortId, ports.PortHistory]:
        found = {}
        for number in device.ports:
            reading = self._reader.read(device, number)
            found[reading.port] = ports.advance(self._histories.get(reading.port), device, reading, self._timing)
        return found

    def _count(self, statuses: Mapping[PortId, PortStatus]) -> None:
        """Counts this tick's faults, and forgets those of ports that are gone."""
        present = {(port.device, str(port.port)) for port in statuses}
        for key in [key for key in self._errors if key[:2] not in present]:
            del self._errors[key]
        for port, history in self._histories.items():
            reasons = {reason for _, reason in history.reading.faults}
            reasons |= {track.reason for track in (history.transmit, history.receive) if track.reason in _BROKEN}
            status = statuses[port]
            reasons |= {flow.reason for flow in (status.transmit, status.receive) if flow.reason == "over_limit"}
            for reason in reasons:
                self._note(port, reason)
        self._reader.forget(frozenset((port, status.device.identity) for port, status in statuses.items()))

    def _note(self, port: PortId, reason: str) -> None:
        key = (port.device, str(port.port), reason)
        if key not in self._errors:
            _LOG.warning("%s: %s", port.hw_id, reason)
        self._errors[key] += 1


_BROKEN = frozenset({"reset", "gap"})
