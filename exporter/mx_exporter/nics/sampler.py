"""One tick of the NIC side: look at every port once, carry the histories on, count what could not be read.

Called by the exporter's own ticking thread and by `--once`; whoever wants another clock or tree gives one.
"""

from __future__ import annotations

import collections
import dataclasses
import logging
from collections.abc import Callable, Mapping

from mx_exporter.model import Count, Device, NicView, PortId, PortReading, PortStatus
from mx_exporter.nics import devices, ports
from mx_exporter.nics.readings import Limits, PortReader
from mx_exporter.nics.sysfs import Tree, UnreadableError
from mx_exporter.nics.tracks import Timing
from mx_exporter.nics.walk import Walk

_LOG = logging.getLogger("mx_exporter")
_REFRESH = 10.0  # seconds after which what is fixed about a device is read again all the same


@dataclasses.dataclass(frozen=True, slots=True)
class _Look:
    """One look at one device: what is fixed about it and since when that is known, and its ports' readings."""

    device: Device
    described: float
    readings: tuple[PortReading, ...]


class NicSampler:
    """Keeps the histories of all ports under one sysfs root. `tick` is for one thread at a time."""

    def __init__(
        self,
        tree: Tree,
        timing: Timing,
        clock: Callable[[], float],
        limits: Limits | None = None,
        patience: float | None = 0.5,
    ) -> None:
        """Reads nothing yet.

        Args:
            tree: The sysfs root.
            timing: How often `tick` is called, and what is averaged over.
            clock: Monotonic seconds, read beside every counter.
            limits: Link rates that the user states.
            patience: Seconds that one device may take before a tick goes on without it; None: for ever.
        """
        self._tree = tree
        self._timing = timing
        self._clock = clock
        self._reader = PortReader(tree, clock, limits)
        self._walk = Walk(self._look, patience)
        self._looks: dict[str, _Look] = {}
        self._addresses: dict[str, str] = {}
        self._addressed = -_REFRESH
        self._histories: dict[PortId, ports.PortHistory] = {}
        self._errors: collections.Counter[tuple[str, str, str]] = collections.Counter()

    def tick(self) -> NicView:
        """Reads everything once. Never raises for anything that is on the tree."""
        try:
            names = devices.device_names(self._tree)
        except UnreadableError as error:
            return NicView(hint=f"{self._tree.root}/{devices.CLASS} cannot be listed: {error.reason}")
        self._locate(names)
        looks = {}
        for name, look in self._walk.over(names).items():
            if look is None and name in self._looks and self._tree.exists(f"{devices.CLASS}/{name}"):
                look = _unanswered(self._looks[name], self._clock())
            if look is not None:
                looks[name] = look
        self._looks = looks
        self._histories, statuses = ports.settle(self._advanced(), self._timing)
        self._count(statuses)
        shared = ports.functions(self._histories)
        carriers = {member: owner for owner, members in shared.items() for member in members}
        return NicView(statuses, carriers, dict(self._errors), self._hint(statuses))

    def stop(self) -> None:
        """Ends what `tick` started."""
        self._walk.stop()

    def _locate(self, names: tuple[str, ...]) -> None:
        """Finds out where the devices are on the PCI tree, when there are others than before or it is time."""
        now = self._clock()
        if now - self._addressed >= _REFRESH or not self._looks.keys() >= set(names):
            self._addresses, self._addressed = devices.addresses(self._tree, names), now

    def _look(self, name: str) -> _Look | None:
        """One look at one device; None when it vanished. Called in a thread of the walk's."""
        identity = devices.identity(self._tree, name)
        if identity is None:
            return None
        old = self._looks.get(name)
        now = self._clock()
        if old is None or old.device.identity != identity or _passing(old.device) or now - old.described >= _REFRESH:
            device, described = devices.describe(self._tree, name, identity, self._addresses), now
        else:
            device, described = old.device, old.described
        return _Look(device, described, tuple(self._reader.read(device, number) for number in device.ports))

    def _advanced(self) -> dict[PortId, ports.PortHistory]:
        return {
            reading.port: ports.advance(self._histories.get(reading.port), look.device, reading, self._timing)
            for look in self._looks.values()
            for reading in look.readings
        }

    def _hint(self, statuses: Mapping[PortId, PortStatus]) -> str | None:
        where = f"{self._tree.root}/{devices.CLASS}"
        if portless := self._portless():
            return ", ".join(f"{where}/{name}/ports" for name in portless) + ": no port can be listed there"
        if not statuses:
            return f"no RDMA device under {where}"
        if any(status.transmit.reason == "no_counters_netns" for status in statuses.values()):
            return f"{where} is a pod's own view, without counters: mount the host's /sys and give it as --sysfs"
        return None

    def _portless(self) -> tuple[str, ...]:
        return tuple(name for name, look in self._looks.items() if not look.device.ports)

    def _count(self, statuses: Mapping[PortId, PortStatus]) -> None:
        """Counts this tick's faults, and forgets those of ports that are gone."""
        portless = self._portless()
        present = {(port.device, str(port.port)) for port in statuses} | {(name, "") for name in portless}
        for key in [key for key in self._errors if key[:2] not in present]:
            del self._errors[key]
        for port, history in self._histories.items():
            reasons = {reason for _, reason in history.reading.faults}
            reasons |= {track.reason for track in (history.transmit, history.receive) if track.reason in _BROKEN}
            status = statuses[port]
            reasons |= {flow.reason for flow in (status.transmit, status.receive) if flow.reason == "over_limit"}
            for reason in reasons:
                self._note(port.device, str(port.port), reason)
        for name in portless:
            self._note(name, "", "no_ports")
        self._reader.forget(frozenset((port, status.device.identity) for port, status in statuses.items()))

    def _note(self, device: str, port: str, reason: str) -> None:
        key = (device, port, reason)
        if key not in self._errors:
            _LOG.warning("%s: %s", f"{device}/{port}".rstrip("/"), reason)
        self._errors[key] += 1


def _passing(device: Device) -> bool:
    """Whether what was read of a device may be another thing at the next tick: a bond's rails, or no ports yet."""
    return device.rails != 1 or not device.ports


def _unanswered(look: _Look, now: float) -> _Look:
    """What is left of a device that did not answer: its ports, and that nothing is known of them."""
    count = Count(None, now, "timeout")
    readings = tuple(
        PortReading(reading.port, reading.identity, None, None, count, count, (("state", "timeout"),))
        for reading in look.readings
    )
    return dataclasses.replace(look, readings=readings)


_BROKEN = frozenset({"reset", "gap"})
