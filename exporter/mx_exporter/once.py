"""What `--once` prints: everything this node's exporter sees, as tables for a person, with a reason for each blank."""

from __future__ import annotations

import io
from collections.abc import Iterable

from rich.console import Console
from rich.table import Table
from rich.text import Text

from mx_exporter.model import Flow, PortStatus
from mx_exporter.snapshot import Snapshot


def report(snapshot: Snapshot, width: int = 140) -> str:
    """The tables, without colours."""
    console = Console(file=io.StringIO(), width=width, color_system=None, markup=False, emoji=False, highlight=False)
    for table in (_ports(snapshot), _engines(snapshot), _sources(snapshot)):
        if table.row_count:
            console.print(table)
    if snapshot.nics.hint:
        _line(console, f"NICs: {snapshot.nics.hint}")
    if snapshot.kubelet_hint:
        _line(console, f"Kubelet: {snapshot.kubelet_hint}; no pod's own NICs and GPUs are known from it.")
    if not snapshot.sources:
        console.print("Sources: none known. Give --discovery static --sources FILE or --discovery kubernetes.")
    output = console.file
    assert isinstance(output, io.StringIO)
    return output.getvalue().rstrip()


def _line(console: Console, text: str) -> None:
    console.print(text, soft_wrap=True)


def _table(title: str, columns: Iterable[str]) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _row(table: Table, *cells: str) -> None:
    """A row of what may be anybody's words: no markup, and nothing that a terminal would obey."""
    table.add_row(
        *(
            Text("".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in cell))
            for cell in cells
        )
    )


def _ports(snapshot: Snapshot) -> Table:
    table = _table("Ports", ("port", "driver", "link", "pci", "up", "limit", "transmit", "receive"))
    for status in snapshot.nics.statuses.values():
        device = status.device
        _row(
            table,
            status.port.hw_id,
            device.driver or "-",
            device.link_layer or "-",
            device.pci_address or "-",
            {True: "yes", False: "no", None: "?"}[status.up],
            _limit(status),
            _flow(status.transmit),
            _flow(status.receive),
        )
    return table


def _limit(status: PortStatus) -> str:
    rails = status.device.rails
    width = f" ({rails} ports)" if rails and rails > 1 else ""
    return "-" if status.limit is None else f"{status.limit / 125e6:g} Gb/s{width}"


def _flow(flow: Flow) -> str:
    if flow.utilization is None:
        return f"unknown: {flow.reason}"
    return f"{flow.utilization:6.1%}  {(flow.rate or 0) / 125e6:.2f} Gb/s"


def _engines(snapshot: Snapshot) -> Table:
    table = _table("Engines", ("pod", "engine", "index", "KV cache"))
    for pod, usages in snapshot.usages.items():
        for usage in usages:
            value = f"unknown: {usage.reason}" if usage.value is None else f"{usage.value:.1%}"
            _row(table, f"{pod.namespace}/{pod.name}", usage.engine or "-", usage.engine_index or "-", value)
    return table


def _sources(snapshot: Snapshot) -> Table:
    table = _table("Sources", ("pod", "gpu", "ports", "mapped by", "nic", "kv", "load", "unknown"))
    ports = {
        (pod, one.gpu): ", ".join(port.hw_id for port in one.ports)
        for pod, assignments in snapshot.assignments.items()
        for one in assignments
    }
    for load in snapshot.loads:
        _row(
            table,
            f"{load.pod.namespace}/{load.pod.name}",
            load.gpu or "all",
            ports.get((load.pod, load.gpu)) or "-",
            load.mapping.value,
            _share(load.nic),
            _share(load.kv),
            _share(load.load),
            ", ".join(f"{part}: {reason}" for part, reason in load.unknown) or "-",
        )
    return table


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"
