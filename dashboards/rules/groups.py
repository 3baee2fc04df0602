"""The groups of rules, in the order they are evaluated."""

from __future__ import annotations

from dashboards.rules.alerts import ALERTS
from dashboards.rules.model import Group
from dashboards.rules.recordings import RECORDINGS


def all_groups(runbooks: str) -> tuple[Group, ...]:
    """Recordings, then alerts.

    Args:
        runbooks: Beginning of each `runbook_url`, without a slash at its end.
    """
    return (
        Group("mx-source-load.recordings", "30s", RECORDINGS),
        Group("mx-source-load.alerts", "30s", ALERTS, runbooks),
    )
