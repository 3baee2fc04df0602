"""All that one tick knew: made once by the ticking thread, shown to whoever asks until the next one is made."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Mapping

from mx_exporter.engines.status import ScrapeStatus
from mx_exporter.model import Assignment, NicView, Pod, Source, SourceLoad, Usage


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
    kubelet_hint: str | None = None  # why the kubelet cannot be asked

    def aged(self, reason: str) -> Snapshot:
        """What may still be said of this tick once it is too old to be the present: nothing that was measured."""
        unknown = tuple(
            dataclasses.replace(load, nic=None, kv=None, unknown=(("nic", reason), ("kv", reason)))
            for load in self.loads
        )
        return dataclasses.replace(self, nics=NicView(errors=self.nics.errors), loads=unknown, usages={}, scrapes=())


class Present:
    """Holds the latest snapshot, and gives what of it is still the present. Any thread may ask."""

    def __init__(self, stale_after: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Holds nothing yet.

        Args:
            stale_after: A snapshot older than these seconds says nothing about now any more.
            clock: The monotonic clock of the snapshots.
        """
        self.stale_after = stale_after
        self._clock = clock
        self._lock = threading.Lock()
        self._latest: Snapshot | None = None
        self._aged: Snapshot | None = None

    @property
    def latest(self) -> Snapshot | None:
        """The latest snapshot, however old; None before the first."""
        return self._latest

    def put(self, snapshot: Snapshot) -> None:
        """Takes a new snapshot."""
        with self._lock:
            self._latest, self._aged = snapshot, None

    def age(self) -> float | None:
        """Seconds since the latest snapshot; None before the first."""
        latest = self._latest
        return None if latest is None else self._clock() - latest.at

    def get(self) -> Snapshot | None:
        """What may be said now: the latest snapshot, or that it is too old. The same one until something changes."""
        with self._lock:
            if self._latest is None or self._clock() - self._latest.at <= self.stale_after:
                return self._latest
            if self._aged is None:
                self._aged = self._latest.aged("sampler_stalled")
            return self._aged
