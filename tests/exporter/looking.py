"""An exporter without threads, sockets or real time: a tree, a virtual clock, stand-ins for discovery and engines."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from unittest import mock

from opentelemetry.sdk.resources import Resource

from mx_exporter.engines.status import ScrapeStatus
from mx_exporter.exposition import Pages
from mx_exporter.model import Pod, Source, Usage
from mx_exporter.nics.readings import Limits
from mx_exporter.nics.sampler import NicSampler
from mx_exporter.nics.sysfs import Tree
from mx_exporter.nics.tracks import Timing
from mx_exporter.snapshot import Present, Snapshot
from mx_exporter.ticker import Ticker
from tests.exporter.trees import Node

START = 1_700_000_000.0


class Clock:
    """Seconds that pass only when told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def wall(self) -> float:
        return START + self.now


@dataclasses.dataclass
class KnownSources:
    """A discovery that knows what it is told."""

    known: tuple[Source, ...] = ()

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def sources(self) -> tuple[Source, ...]:
        return self.known

    def age(self) -> float | None:
        return 0.0


@dataclasses.dataclass
class KnownUsages:
    """Engines that say what they are told."""

    known: Mapping[Pod, tuple[Usage, ...]] = dataclasses.field(default_factory=dict)
    scraped: tuple[ScrapeStatus, ...] = ()

    def usages(self) -> Mapping[Pod, tuple[Usage, ...]]:
        return self.known

    def scrapes(self) -> tuple[ScrapeStatus, ...]:
        return self.scraped


class Looking:
    """Ticks over a node and shows the page."""

    def __init__(
        self,
        node: Node,
        *sources: Source,
        timing: Timing | None = None,
        limits: Limits | None = None,
        tree: Tree | None = None,
    ) -> None:
        self.clock = Clock()
        self.discovery = KnownSources(sources)
        self.engines = KnownUsages()
        sysfs = tree or Tree(node.sysfs)
        self.sampler = NicSampler(sysfs, timing or Timing(), self.clock, limits, patience=None)
        self.present = Present(5.0, self.clock)
        self.ticker = Ticker(
            self.sampler,
            self.discovery,
            self.engines,  # type: ignore[arg-type]
            sysfs,
            Tree(node.procfs),
            self.present,
            clock=self.clock,
            wall=self.clock.wall,
        )
        self.pages = Pages(Resource({"service.name": "mx-exporter"}), START)

    def tick(self, after: float = 1.0) -> Snapshot:
        """One tick, this many seconds after the last."""
        self.clock.now += after
        return self.ticker.tick()

    def page(self, accept: str = "") -> str:
        """The page of the last tick, without what is the same for every exporter."""
        snapshot = self.present.get()
        assert snapshot is not None
        text = self.pages.page(snapshot, accept)[0].decode()
        return re.sub(r"(?m)^(?:# (?:HELP|TYPE) )?(?:target_info|target|mx_build_info)\b.*\n", "", text)


def values(page: str, name: str) -> dict[str, float]:
    """The samples of one metric: labels as printed -> value."""
    found = re.findall(rf"(?m)^{re.escape(name)}(?:{{(.*)}})? (\S+)$", page)
    return {labels: float(value) for labels, value in found}


def quiet() -> mock._patch[mock.Mock]:
    """Keeps the log out of a test that breaks things on purpose."""
    return mock.patch("mx_exporter.nics.sampler._LOG")
