"""All that one tick knew: made once by the ticking thread, shown to whoever asks until the next one is made."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from mx_exporter.engines.status import ScrapeStatus
from mx_exporter.model import Assignment, Pod, Source, SourceLoad, Usage
from mx_exporter.nics.sampler import NicView


@dataclasses.dataclass(frozen=True, slots=True)
class Snapshot:
    """One tick. Every scrape between two ticks reads the same one, so that all readers see the same numbers."""

    at: float  # when the tick ended, monotonic seconds
    wall: float  # the same in seconds since 1970
    duration: float  # seconds the tick took
    nics: NicView
    sources: tuple[Source, ...] = ()
    assignments: Mapping[Pod, tuple[Assignment, ...]] = dataclasses.field(default_factory=dict)
    loads: tuple[SourceLoad, ...] = ()
    usages: Mapping[Pod, tuple[Usage, ...]] = dataclasses.field(default_factory=dict)
    scrapes: tuple[ScrapeStatus, ...] = ()
    discovery_age: float | None = None  # seconds since the sources were last confirmed

    def aged(self, reason: str) -> Snapshot:
        """What may still be said of this tick once it is too old to be the present: nothing that was measured."""
        unknown = tuple(
            dataclasses.replace(load, nic=None, kv=None, unknown=(("nic", reason), ("kv", reason)))
            for load in self.loads
        )
        return dataclasses.replace(self, nics=NicView(errors=self.nics.errors), loads=unknown, usages={}, scrapes=())
