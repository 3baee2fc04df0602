"""Kubernetes discovery: this node's pods, listed once and watched, kept through an outage of the API server."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable

from mx_exporter.discovery import pods
from mx_exporter.discovery.apiserver import ApiError, ApiServer, Event, ExpiredError, Location, Object, locate
from mx_exporter.discovery.settings import KubernetesSettings
from mx_exporter.loops import LoopThread
from mx_exporter.model import Source

_log = logging.getLogger(__name__)
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0


class KubernetesDiscovery:
    """Lists and watches the pods of one node from a thread of its own."""

    def __init__(self, settings: KubernetesSettings | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings or KubernetesSettings()
        self._clock = clock
        self._location = Location("", "")
        self._known: dict[str, Source] = {}  # by the pod's uid
        self._sources: tuple[Source, ...] = ()
        self._heard: float | None = None
        self._trouble: str | None = None
        self._complaints: dict[str, tuple[str, ...]] = {}
        self._thread: LoopThread | None = None

    def start(self) -> None:
        """Begin to watch.

        Raises:
            ConfigurationError: The node's name or the API server is not known.
        """
        self._location = locate(self._settings)
        self._thread = LoopThread("mx-kubernetes", self._run)
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        if self._thread is not None:
            self._thread.stop()

    def sources(self) -> tuple[Source, ...]:
        """The sources among the node's pods, ordered by pod."""
        return self._sources

    def age(self) -> float | None:
        """Seconds since the API server last said anything; None before the first list.

        It speaks at least once a minute while all is well: every minute comes a bookmark.
        """
        return None if self._heard is None else self._clock() - self._heard

    async def _run(self) -> None:
        api = ApiServer(self._settings, self._location)
        try:
            await self._follow(api)
        finally:
            await api.close()

    async def _follow(self, api: ApiServer) -> None:
        version, at_hand, failures = None, "0", 0
        while True:
            began = self._clock()
            try:
                if version is None:
                    version = await self._list(api, at_hand)
                async with contextlib.aclosing(api.watch(version)) as events:
                    async for event in events:
                        self._take(event)
                        version = event.version or version
                # The server ends a watch every few minutes; one that ends at once is no watch.
                failures = 0 if self._clock() - began > _FIRST_PAUSE else failures + 1
            except ExpiredError as error:
                # Not from what the server has at hand: it was that which has expired.
                _log.info("kubernetes: listing again: %s", error)
                version, at_hand, failures = None, "", failures + 1
            except Exception as error:  # noqa: BLE001 - what nobody foresaw must not end it either
                if not isinstance(error, ApiError):
                    _log.exception("kubernetes: an unforeseen failure")
                self._complain(str(error))
                failures = 1 if self._clock() - began > _LONGEST_PAUSE else failures + 1
                await api.close()
            if failures:
                await asyncio.sleep(_pause(failures))

    async def _list(self, api: ApiServer, version: str) -> str:
        listed: dict[str, Source] = {}

        def take(pod: Object) -> None:
            source = self._found(pod)
            if source is not None:
                listed[pods.uid(pod)] = source

        watch_from = await api.list_pods(version, take)
        self._complaints = {uid: said for uid, said in self._complaints.items() if uid in listed}
        self._known = listed
        self._publish()
        _log.info("kubernetes: %d sources on node %s", len(listed), self._location.node)
        return watch_from

    def _take(self, event: Event) -> None:
        self._hear()
        if event.kind in ("OPEN", "BOOKMARK"):
            return
        uid = pods.uid(event.pod)
        source = None if event.kind == "DELETED" else self._found(event.pod)
        if source != self._known.get(uid):
            if source is None:
                del self._known[uid]
            else:
                self._known[uid] = source
            self._publish()
        if source is None:
            self._complaints.pop(uid, None)

    def _found(self, pod: Object) -> Source | None:
        try:
            found = pods.found(pod, self._location.node, bool(self._settings.pod_selector))
        except Exception:  # noqa: BLE001 - one odd pod must not cost the others
            _log.exception("a pod is passed over for an unforeseen reason")
            return None
        if found.complaints and self._complaints.get(pods.uid(pod)) != found.complaints:
            self._complaints[pods.uid(pod)] = found.complaints
            source = found.source
            name = f"{source.pod.namespace}/{source.pod.name}" if source else "a pod"
            for complaint in found.complaints:
                _log.warning("%s: %s", name, complaint)
        return found.source

    def _publish(self) -> None:
        self._sources = tuple(sorted(self._known.values(), key=lambda source: source.pod))
        self._hear()

    def _hear(self) -> None:
        self._heard = self._clock()
        if self._trouble is not None:
            _log.info("kubernetes: the API server answers again")
            self._trouble = None

    def _complain(self, trouble: str) -> None:
        if trouble != self._trouble:
            _log.warning("kubernetes: %s; %d sources known so far stay", trouble, len(self._sources))
        self._trouble = trouble


def _pause(failures: int) -> float:
    """Ever longer, and never the same for all nodes, which lose the API server in one moment."""
    longest = min(_FIRST_PAUSE * 2.0 ** min(failures - 1, 16), _LONGEST_PAUSE)
    return longest * random.uniform(0.5, 1.0)
