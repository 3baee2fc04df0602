"""What one run of the lab is asked to do."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Final

POLICIES: Final = ("random", "rendezvous_hash", "load_aware", "headroom")


@dataclasses.dataclass(frozen=True)
class Settings:
    """A run's numbers; seconds are wall-clock seconds.

    Attributes:
        starts: Target starts; each lists and ranks once under every policy, and pulls under one of them in turn.
        duration: Over how many seconds the starts are spread.
        heartbeat: Of the sources; the window in which the operator may write is 0.9 of it.
        scrape: Prometheus' scrape interval.
        interval: The operator's; None leaves it to the policy's default.
        weights: Bytes that one pull moves.
        without: Parts left out, of `operator` and `exporter`.
        server_drops_load: The server accepts loads and drops them, as one from before the field does.
        stay: Go on after the report until interrupted.
        report: Folder for the report as JSON.
        keep: Folder for the parts' files and Prometheus' data, kept; a temporary one, removed, when None.
    """

    sources: int = 8
    nodes: int = 4
    busy_nic: int = 1
    busy_kv: int = 1
    starts: int = 1200
    duration: float = 60.0
    heartbeat: float = 15.0
    scrape: float = 5.0
    interval: float | None = None
    weights: float = 1e9
    seed: int = 1
    without: frozenset[str] = frozenset()
    server_drops_load: bool = False
    stay: bool = False
    report: pathlib.Path | None = None
    keep: pathlib.Path | None = None

    @property
    def warm_up(self) -> float:
        """How long at most to wait for loads before the first target: two heartbeats, two scrapes and a start-up."""
        return 2 * self.heartbeat + 2 * self.scrape + 10
