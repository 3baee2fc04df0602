"""The thread that ticks: once an interval it samples the ports, takes what discovery and engines know, and decides.

Everything that a scrape shows is made here, into one snapshot; serving only reads it.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable, Mapping

from mx_exporter.blend import blend
from mx_exporter.discovery import Discovery
from mx_exporter.engines import Engines
from mx_exporter.mapping.allocations import enriched
from mx_exporter.mapping.assignments import assign
from mx_exporter.mapping.kubelet import Kubelet
from mx_exporter.mapping.places import carries_rdma, host_gpus, places
from mx_exporter.model import Assignment, Gpu, HostGpu, NicView, Place, Pod, Source, SourceLoad, Usage
from mx_exporter.nics.sampler import NicSampler
from mx_exporter.nics.sysfs import Tree
from mx_exporter.snapshot import Present, Snapshot

_LOG = logging.getLogger("mx_exporter")
_PLACES_KEPT = 60.0  # seconds; a GPU's place changes only with its driver


class Ticker:
    """Makes snapshots. `tick` makes one in the calling thread; `start` makes one every interval in a thread."""

    def __init__(
        self,
        nics: NicSampler,
        discovery: Discovery,
        engines: Engines,
        sysfs: Tree,
        procfs: Tree,
        present: Present,
        kubelet: Kubelet | None = None,
        interval: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._nics = nics
        self._discovery = discovery
        self._engines = engines
        self._sysfs = sysfs
        self._procfs = procfs
        self._interval = interval
        self._clock = clock
        self._wall = wall
        self._places: dict[tuple[Gpu, ...], tuple[float, dict[int, Place]]] = {}
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._present = present
        self._kubelet = kubelet
        self._host_gpus: tuple[HostGpu, ...] | None = None
        self._met: frozenset[Pod] = frozenset()

    def start(self) -> None:
        """Tick now, then every interval in a thread of its own."""
        self.tick()
        self._thread = threading.Thread(target=self._run, name="mx-ticker", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread; returns when it has ended."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(timeout=5)
        self._nics.stop()

    def _run(self) -> None:
        due = self._clock() + self._interval
        while not self._stopping.wait(max(0.0, due - self._clock())):
            try:
                self.tick()
            except Exception:  # noqa: BLE001 - one bad tick must not end all others
                _LOG.exception("a tick failed; the next one is tried all the same")
            # A tick that was late does not make the next ones early.
            due = max(due + self._interval, self._clock() + self._interval / 2)

    def tick(self) -> Snapshot:
        """Makes one snapshot, which is the present from then on."""
        begun = self._clock()
        nics = self._nics.tick()
        sources = self._enriched(self._discovery.sources())
        usages = self._engines.usages()
        assigned = {source.pod: self._assign(source, nics) for source in sources}
        ended = self._clock()
        snapshot = Snapshot(
            at=ended,
            wall=self._wall(),
            duration=ended - begun,
            nics=nics,
            sources=sources,
            assignments=assigned,
            loads=_loads(assigned, usages, nics),
            usages={pod: of_pod for pod, of_pod in usages.items() if pod in assigned},
            scrapes=tuple(one for one in self._engines.scrapes() if one.pod in assigned),
            discovery_age=self._discovery.age(),
            kubelet_hint=_hint(self._kubelet),
        )
        before = self._present.latest
        if nics.hint and (before is None or before.nics.hint != nics.hint):
            _LOG.warning(nics.hint)
        self._present.put(snapshot)
        return snapshot

    def _enriched(self, sources: tuple[Source, ...]) -> tuple[Source, ...]:
        """The sources with what the kubelet knows of them."""
        if self._kubelet is None:
            return sources
        met = frozenset(source.pod for source in sources)
        if not met <= self._met:
            self._kubelet.hurry()
            self._host_gpus = None
        self._met = met
        if self._host_gpus is None:
            self._host_gpus = host_gpus(self._procfs)
        allocations, gpus = self._kubelet.allocations, self._host_gpus
        rdma = functools.partial(carries_rdma, self._sysfs)
        return tuple(enriched(source, allocations, gpus, rdma) for source in sources)

    def _assign(self, source: Source, nics: NicView) -> tuple[Assignment, ...]:
        return assign(source, nics.statuses, self._where(source.gpus) if source.gpus else {})

    def _where(self, gpus: tuple[Gpu, ...]) -> dict[int, Place]:
        now = self._clock()
        kept = self._places.get(gpus)
        if kept is None or now - kept[0] > _PLACES_KEPT:
            self._places = {key: entry for key, entry in self._places.items() if now - entry[0] <= _PLACES_KEPT}
            kept = self._places[gpus] = (now, places(self._sysfs, self._procfs, gpus))
        return kept[1]


def _hint(kubelet: Kubelet | None) -> str | None:
    if kubelet is None or kubelet.problem is None:
        return None
    return f"--pod-resources {kubelet.socket} cannot be asked: {kubelet.problem}"


def _loads(
    assigned: dict[Pod, tuple[Assignment, ...]], usages: Mapping[Pod, tuple[Usage, ...]], nics: NicView
) -> tuple[SourceLoad, ...]:
    return tuple(
        load
        for pod, assignments in assigned.items()
        for load in blend(pod, assignments, usages.get(pod, ()), nics.statuses, nics.carriers)
    )
