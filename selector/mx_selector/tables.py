"""Standings and forecasts as tables for a terminal. `rich` is imported only when one is printed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mx_selector.explanations import Standing
from mx_selector.forecasts import BUSY, Forecast
from mx_selector.readings import load_of

if TYPE_CHECKING:
    from rich.table import Table


def of_standings(standing: Sequence[Standing], title: str) -> Table:
    """One row per source, best first; columns that say nothing are left out."""
    table = _table(title)
    table.add_column("rank", justify="right")
    table.add_column("source")
    table.add_column("load", justify="right")
    table.add_column("age", justify="right")
    table.add_column("unit hash", justify="right")
    weighted = any(s.weight is not None for s in standing)
    tiered = any(s.tier for s in standing)
    if weighted:
        table.add_column("weight", justify="right")
    table.add_column("score", justify="right")
    if tiered:
        table.add_column("nearest")
    for s in standing:
        cells = [str(s.rank), plain(s.worker_id), load_cell(s.load), _age(s.age), f"{s.unit_hash:.4f}"]
        cells += [_number(s.weight)] if weighted else []
        cells += [_number(s.score), *([plain(s.tier) or "-"] if tiered else [])]
        table.add_row(*cells, style="bold" if s.rank == 1 else None)
    return table


def of_forecasts(candidates: Sequence[Any], forecasts: Sequence[Forecast], title: str) -> Table:
    """One row per source, one column per policy, and what each policy's rollout looks like as a whole."""
    table = _table(title)
    table.add_column("source")
    table.add_column("load", justify="right")
    for f in forecasts:
        table.add_column(f.policy, justify="right")
    for index, candidate in enumerate(candidates):
        shares = [f"{f.pulls[index]:.1f}" for f in forecasts]
        table.add_row(plain(candidate.worker_id), load_cell(load_of(candidate)), *shares)
    table.add_section()
    table.add_row(f"on busy sources (load >= {BUSY:g})", "", *[f"{f.busy_pulls:.1f}" for f in forecasts])
    table.add_row("deepest pile on one source", "", *[str(f.deepest) for f in forecasts])
    return table


def _table(title: str) -> Table:
    from rich import box
    from rich.table import Table

    return Table(title=plain(title), title_justify="left", title_style="", box=box.SIMPLE_HEAD)


def plain(text: str) -> str:
    """Text from a server for a terminal: no control characters, and brackets are brackets."""
    from rich.markup import escape

    return escape("".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text))


def load_cell(load: float | None) -> str:
    """The load with two digits, coloured from 0.5 and 0.7 on; `unknown` where it is."""
    if load is None:
        return "[dim]unknown[/dim]"
    colour = "red" if load >= BUSY else "yellow" if load >= 0.5 else "green"
    return f"[{colour}]{load:.2f}[/{colour}]"


def _age(age: float | None) -> str:
    return "-" if age is None else f"{age:.1f} s"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
