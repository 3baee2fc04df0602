"""What is generated, and where it lies: in the chart, which ships it, and beside the source for use without Helm."""

from __future__ import annotations

import pathlib
from typing import Final

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from dashboards.boards.pipeline import pipeline
from dashboards.boards.rollout import rollout
from dashboards.boards.source import source
from dashboards.rules import groups, rendering

ROOT: Final = pathlib.Path(__file__).parents[1]
CHART: Final = pathlib.Path("charts/mx-source-load")
#: Where alerts point to unless told otherwise: the pages of this repository.
RUNBOOKS: Final = "docs/runbooks"


def boards() -> dict[str, str]:
    """The dashboards as JSON, by uid."""
    made = (rollout(), source(), pipeline())
    return {str(board.uid): JSONEncoder(sort_keys=True, indent=2).encode(board) + "\n" for board in made}


def generated(runbooks: str = RUNBOOKS) -> dict[pathlib.Path, str]:
    """Every generated file's text, by its path below the root.

    Args:
        runbooks: Beginning of each `runbook_url`, without a slash at its end.
    """
    rules = groups.all_groups(runbooks)
    return {
        **{CHART / "dashboards" / f"{uid}.json": text for uid, text in boards().items()},
        CHART / "rules" / "mx-source-load.yaml": rendering.plain(rules),
        pathlib.Path("dashboards/generated/prometheusrule.yaml"): rendering.resource(rules),
    }
