"""The generated dashboards as tests see them: panels, queries, and Grafana's variables put in."""

from __future__ import annotations

import dataclasses
import functools
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from tests.dashboards.history import ROOT

FOLDER: Final = ROOT / "charts/mx-source-load/dashboards"
NAMES: Final = ("mx-rollout", "mx-source", "mx-pipeline")
#: What Grafana puts in at the end of an ordinary hour, with a scrape interval of 15 s.
DEFAULTS: Final = {
    "job": ".+",
    "model": ".*",
    "busy": "0.7",
    "baseline": "1h",
    "__rate_interval": "1m0s",
    "__interval": "15s",
    "__range": "1h",
}


@dataclasses.dataclass(frozen=True)
class Question:
    """One query of one panel."""

    board: str
    panel: str
    ref: str
    expr: str
    instant: bool
    format: str

    @property
    def name(self) -> str:
        """How tests and lists of exceptions call it."""
        return f"{self.board} / {self.panel} / {self.ref}"

    def with_values(self, **values: str) -> str:
        """The expression as Prometheus gets it."""
        return filled(self.expr, DEFAULTS | values)


def filled(expression: str, values: Mapping[str, str]) -> str:
    """Put Grafana's variables in; one that is not known stays."""
    return re.sub(r"\$\{?([a-z_]+)\}?", lambda found: values.get(found[1], found[0]), expression)


@functools.cache
def board(name: str) -> dict[str, Any]:
    """A dashboard's JSON."""
    made: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text())
    return made


def panels(name: str) -> list[dict[str, Any]]:
    """Its panels, rows left out."""
    return [panel for panel in board(name)["panels"] if panel["type"] != "row"]


def questions() -> Iterator[Question]:
    """Every query of every panel."""
    for name in NAMES:
        for panel in panels(name):
            for target in panel.get("targets", ()):
                instant, form = bool(target.get("instant")), target.get("format", "time_series")
                yield Question(name, panel["title"], target["refId"], target["expr"], instant, form)
