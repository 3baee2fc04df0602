"""Where panels go: the one place that gives them positions, ids and letters for their queries.

The SDK lets a row of panels run off the right edge, and leaves ids and refIds out; Grafana then draws wrongly or not at
all. `Grid` wraps, counts and names.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import Final

from grafana_foundation_sdk.models import dashboard, prometheus

COLUMNS: Final = 24
#: Panels of one width and height, side by side.
Band = tuple[int, int, Sequence[dashboard.Panel]]
#: A title and what stands below it.
Row = tuple[str, Sequence[Band]]


def filled(rows: Sequence[Row]) -> Grid:
    """A grid with these rows."""
    grid = Grid()
    for title, bands in rows:
        grid.row(title)
        for width, height, panels in bands:
            for panel in panels:
                grid.add(panel, width, height)
    return grid


class Grid:
    """Fills a dashboard from left to right and top to bottom."""

    def __init__(self) -> None:
        self.panels: list[dashboard.Panel | dashboard.RowPanel] = []
        self._x = self._y = self._height = 0

    def row(self, title: str) -> None:
        """Begin a titled row, open."""
        self._wrap()
        position = dashboard.GridPos(x=0, y=self._y, w=COLUMNS, h=1)
        self.panels.append(dashboard.RowPanel(title=title, id_val=self._next_id(), grid_pos=position, panels=[]))
        self._y += 1

    def add(self, panel: dashboard.Panel, width: int, height: int) -> None:
        """Put a panel to the right of the last one, or below where it does not fit.

        Raises:
            ValueError: It is wider than the grid.
        """
        if not 1 <= width <= COLUMNS:
            raise ValueError(f"{panel.title}: width {width} is not within 1 to {COLUMNS}")
        if self._x + width > COLUMNS:
            self._wrap()
        panel.grid_pos = dashboard.GridPos(x=self._x, y=self._y, w=width, h=height)
        panel.id_val = self._next_id()
        for letter, target in zip(string.ascii_uppercase, panel.targets or [], strict=False):
            assert isinstance(target, prometheus.Dataquery)
            target.ref_id = letter
        self.panels.append(panel)
        self._x, self._height = self._x + width, max(self._height, height)

    def _wrap(self) -> None:
        self._x, self._y, self._height = 0, self._y + self._height, 0

    def _next_id(self) -> int:
        return len(self.panels) + 1
