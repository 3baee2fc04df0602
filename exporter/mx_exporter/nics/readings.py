"""One look at one port: state, rate and byte counters, each file on its own, the clock read beside the counters."""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Callable, Mapping

from mx_exporter.model import Count, Device, PortId, PortReading
from mx_exporter.nics.counters import TABLE, ByteCounters
from mx_exporter.nics.devices import CLASS, netdevs
from mx_exporter.nics.sysfs import Tree, UnreadableError
from mx_exporter.nics.values import SATURATED, parse_count, parse_integer, parse_rate, parse_state

_MEGABIT = 125_000.0  # bytes
# What drivers preset when they do not know the speed. On Ethernet the interface knows better; where it says nothing,
# a preset rate and a true one (40 Gb/s Ethernet is QDR, too) cannot be told apart.
_PLACEHOLDERS = frozenset({"", "SDR", "QDR"})
# Reasons that mean "this file is not how this driver counts", so that the next row of the table is tried.
_NOT_HERE = frozenset({"missing", "invalid_argument", "unsupported", "no_pma", "denied"})


@dataclasses.dataclass(frozen=True, slots=True)
class Limits:
    """Link rates that the user states because the port's own `rate` is wrong (old EFA drivers, unknown bonds)."""

    by_device: tuple[tuple[str, float], ...] = ()  # (pattern of device names, bytes a second), first match wins

    def of(self, device: str) -> float | None:
        """The stated rate of a device in bytes a second and direction, all its rails together."""
        return next((rate for pattern, rate in self.by_device if fnmatch.fnmatchcase(device, pattern)), None)


class PortReader:
    """Reads ports, remembering only which row of the counter table each one answers to."""

    def __init__(
        self,
        tree: Tree,
        clock: Callable[[], float],
        limits: Limits | None = None,
        table: tuple[ByteCounters, ...] = TABLE,
    ) -> None:
        self._tree = tree
        self._clock = clock
        self._limits = limits or Limits()
        self._table = table
        self._rows: dict[tuple[PortId, str], ByteCounters] = {}

    def read(self, device: Device, port: int) -> PortReading:
        """One look. Never raises: what cannot be read is a reason."""
        port_id = PortId(device.name, port)
        base = f"{CLASS}/{device.name}/ports/{port}"
        faults: list[tuple[str, str]] = []
        active = self._state(base, faults)
        limit = self._limit(device, base, active, faults)
        row, transmit, receive = self._counts(port_id, device.identity, base)
        faults += [(part, count.reason) for part, count in _named(transmit, receive).items() if count.reason]
        source = f"{device.identity}/{row.name if row else ''}"
        return PortReading(port_id, source, active, limit, transmit, receive, tuple(faults))

    def forget(self, known: frozenset[tuple[PortId, str]]) -> None:
        """Drops what is remembered of ports other than these (with the identity of their device)."""
        self._rows = {key: row for key, row in list(self._rows.items()) if key in known}

    def _state(self, base: str, faults: list[tuple[str, str]]) -> bool | None:
        try:
            active = parse_state(self._tree.read(f"{base}/state"))
        except UnreadableError as error:
            faults.append(("state", error.reason))
            return None
        if active is None:
            faults.append(("state", "malformed"))
        return active

    def _limit(self, device: Device, base: str, active: bool | None, faults: list[tuple[str, str]]) -> float | None:
        if not active:
            return None  # a port that is down shows a placeholder rate
        stated = self._limits.of(device.name)
        if stated is not None:
            return stated
        if device.rails is None:
            faults.append(("rate", "rails_unknown"))
            return None
        try:
            rate = parse_rate(self._tree.read(f"{base}/rate"))
        except UnreadableError as error:
            faults.append(("rate", error.reason))
            return None
        if rate is None:
            faults.append(("rate", "malformed"))
            return None
        bytes_per_second, speed = rate
        if device.link_layer == "Ethernet" and speed in _PLACEHOLDERS:
            known = self._interface_speed(device, base, device.rails)
            if known is None:
                faults.append(("rate", "placeholder"))
            return known
        return bytes_per_second * device.rails

    def _interface_speed(self, device: Device, base: str, rails: int) -> float | None:
        """Bytes a second of all rails together, as the interface says; None when it says none."""
        own = self._tree.text(f"{base}/gid_attrs/ndevs/0")
        names = (own,) if own else netdevs(self._tree, device.name)
        if len(names) != 1 or "/" in names[0]:
            return None  # two interfaces on one function: which is this port's is not known
        speed = parse_integer(self._tree.text(f"class/net/{names[0]}/speed"))
        if self._tree.exists(f"class/net/{names[0]}/bonding"):
            rails = 1  # a bond's speed is that of all its ports
        return speed * _MEGABIT * rails if speed is not None and speed > 0 else None

    def _counts(self, port: PortId, identity: str, base: str) -> tuple[ByteCounters | None, Count, Count]:
        known = self._rows.get((port, identity))
        if known is not None:
            transmit, receive = self._pair(base, known)
            if not (transmit.reason in _NOT_HERE and receive.reason in _NOT_HERE):
                return known, transmit, receive
            self._rows.pop((port, identity), None)
        return self._search(port, identity, base)

    def _search(self, port: PortId, identity: str, base: str) -> tuple[ByteCounters | None, Count, Count]:
        """Goes down the table to the first row that is this driver's; else says why the most telling one is not."""
        best: str | None = None
        for row in self._table:
            transmit, receive = self._pair(base, row)
            reasons = (transmit.reason, receive.reason)
            if None in reasons:
                self._rows[port, identity] = row
                return row, transmit, receive
            if not _NOT_HERE.issuperset(reasons):
                return row, transmit, receive  # its own, though not to be read now: the next look begins here again
            best = best or next((reason for reason in reasons if reason != "missing"), None)
        reason = best or self._absence(base)
        at = self._clock()
        return None, Count(None, at, reason), Count(None, at, reason)

    def _absence(self, base: str) -> str:
        """Nothing is there: in another network namespace than the host's there never is (both folders are absent)."""
        if self._tree.exists(f"{base}/counters") or self._tree.exists(f"{base}/hw_counters"):
            return "no_byte_counters"
        return "no_counters_netns" if self._tree.exists(f"{base}/state") else "gone"

    def _pair(self, base: str, row: ByteCounters) -> tuple[Count, Count]:
        return self._sum(base, row, row.transmit), self._sum(base, row, row.receive)

    def _sum(self, base: str, row: ByteCounters, files: tuple[str, ...]) -> Count:
        total = 0
        for file in files:
            try:
                value = parse_count(self._tree.read(f"{base}/{file}"))
            except UnreadableError as error:
                value = error.reason
            if isinstance(value, str):
                return Count(None, self._clock(), value)
            if row.saturates and value == SATURATED:
                return Count(None, self._clock(), "saturated")
            total += value
        return Count(total * row.octets, self._clock())


def _named(transmit: Count, receive: Count) -> Mapping[str, Count]:
    return {"transmit": transmit, "receive": receive}
