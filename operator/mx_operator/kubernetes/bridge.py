"""The bridge between the cluster's policies and the load loop: policies in, status out.

Runs as tasks of the load loop's own event loop; `run` is called lazily by the CLI, since file mode must not load kopf.
The load loop never waits for Kubernetes: an API server that is away leaves the last known policies running.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import logging
import os
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from mx_operator.core.reports import PolicyReport
from mx_operator.kubernetes import events
from mx_operator.kubernetes.access import Access, AccessError, detect
from mx_operator.kubernetes.api import Api, ApiError
from mx_operator.kubernetes.registry import Registry, identify
from mx_operator.kubernetes.status import Board, Patch
from mx_operator.kubernetes.watch import Watch
from mx_operator.policies import Limits
from mx_operator.ports import PolicyConsumer

_LOG: Final = logging.getLogger(__name__)
_RELIST_SECONDS: Final = 300.0
_LOOK_SECONDS: Final = 1.0
#: An installation without the right to create Events wants none; it is asked again after so many seconds.
_SILENCE: Final = 3600.0
_FIRST_PAUSE: Final = 2.0
_LONGEST_PAUSE: Final = 60.0
_FORBIDDEN: Final = 403
_GONE: Final = 404
_ANOTHER: Final = 422
#: Lists in a row that have to say that the kind does not exist, since a server that starts says so too for a moment.
_NOT_FOUND: Final = 3


@dataclasses.dataclass(frozen=True, slots=True)
class Rhythm:
    """How often the bridge does what; tests make it quicker.

    Attributes:
        relist: Seconds between lists of all policies, whatever the watch says.
        look: Seconds between looks at what status is due.
        pause: Seconds without requests after a failed one, doubled up to `longest`.
        timeout: Seconds for one request.
    """

    relist: float = _RELIST_SECONDS
    look: float = _LOOK_SECONDS
    pause: float = _FIRST_PAUSE
    longest: float = _LONGEST_PAUSE
    timeout: float = 10.0


@dataclasses.dataclass(frozen=True, slots=True)
class Health:
    """How the bridge is doing; for metrics and logs, never a reason to restart the process.

    Attributes:
        listed: Whether the policies were ever listed.
        list_age: Seconds since the last list that succeeded; None before the first.
        watching: Whether the watch's thread runs.
        restarts: How often the watch had to be started again.
        events: How many events the watch has brought.
        refused: Policies whose spec cannot be used.
        error: The last request's error, where it failed.
    """

    listed: bool
    list_age: float | None
    watching: bool
    restarts: int
    events: int
    refused: int
    error: str | None


class Bridge:
    """One per process; also the StatusSink that the load loop reports to."""

    def __init__(
        self,
        *,
        access: Access = detect,
        limits: Limits | None = None,
        rhythm: Rhythm | None = None,
        instance: str | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """Make one; nothing is started.

        Args:
            access: Where to get credentials.
            limits: What this installation lets policies name.
            rhythm: How often it does what.
            instance: This process' name in Events; the pod's when None.
            wall: Unix time, for what is shown.

        Raises:
            AccessError: There is no way to an API server.
        """
        access()
        self._registry = Registry(limits or Limits())
        self._rhythm = rhythm or Rhythm()
        self._instance = instance or os.environ.get("POD_NAME") or socket.gethostname()
        self._wall = wall
        self._boards: dict[str, Board] = {}  # by uid
        self._api = Api(access, self._rhythm.timeout)
        self._access = access
        self._consumer: PolicyConsumer | None = None
        self._relist = asyncio.Event()
        self._listed_at: float | None = None
        self._error: str | None = None
        self._not_found = 0
        self._silent_until = 0.0
        self._watch: Watch | None = None

    def publish(self, report: PolicyReport) -> None:
        """Take the report of a cycle (StatusSink)."""
        board = self._boards.get(report.uid)
        if board is not None:
            board.take(report)

    def health(self) -> Health:
        """How it is doing now."""
        age = None if self._listed_at is None else time.monotonic() - self._listed_at
        watch = self._watch
        return Health(
            listed=age is not None,
            list_age=age,
            watching=watch is not None and watch.alive,
            restarts=watch.restarts if watch is not None else 0,
            events=watch.events if watch is not None else 0,
            refused=sum(1 for known in self._registry.known() if known.errors),
            error=self._error,
        )

    async def run(self, consumer: PolicyConsumer) -> None:
        """Feed `consumer` with policies and store their status until cancelled.

        Returns only by being cancelled; no Kubernetes problem ends it.
        """
        self._consumer = consumer
        loop = asyncio.get_running_loop()
        self._watch = Watch(self._access, functools.partial(_hand_over, loop, self._saw))
        try:
            async with self._api, asyncio.TaskGroup() as tasks:
                tasks.create_task(self._keep_listing())
                tasks.create_task(self._keep_reporting())
                self._watch.start()
        finally:
            await asyncio.to_thread(self._watch.stop)

    def _saw(self, kind: str | None, resource: Mapping[str, Any]) -> None:
        """An event of the watch, in the load loop's thread."""
        changed = self._registry.gone(identify(resource)[1]) if kind == "DELETED" else self._registry.saw(resource)
        if changed and self._listed_at is not None:
            self._apply()

    async def _keep_listing(self) -> None:
        pause = self._rhythm.pause
        while True:
            if await self._list() and not self._not_found:
                pause, wait = self._rhythm.pause, self._rhythm.relist
            else:
                pause, wait = min(2 * pause, self._rhythm.longest), pause
            self._relist.clear()
            try:
                await asyncio.wait_for(self._relist.wait(), wait)
            except TimeoutError:
                continue

    async def _list(self) -> bool:
        since = self._registry.mark()
        try:
            resources = await self._api.policies()
        except (ApiError, AccessError) as error:
            self._failed(error)
            self._not_found = self._not_found + 1 if getattr(error, "code", None) == _GONE else 0
            if self._not_found < _NOT_FOUND:
                return False
            resources = []  # the kind itself is gone, and every policy with it
        first = self._listed_at is None
        self._listed_at = time.monotonic()
        if self._not_found < _NOT_FOUND:
            self._error, self._not_found = None, 0
        changed = self._registry.listed(resources, since)
        if changed or first:
            self._apply()
        if changed and not first and self._watch is not None:
            self._watch.renew()  # it should have told
        return True

    def _apply(self) -> None:
        """Hand the set of policies over, and keep a board for each resource."""
        known = self._registry.known()
        self._boards = {each.uid: self._boards.get(each.uid) or Board(each) for each in known}
        for each in known:
            self._boards[each.uid].renew(each, self._wall())
        refused = [each.name for each in known if each.errors]
        _LOG.info("policies: %d%s", len(known), f", refused: {', '.join(refused)}" if refused else "")
        if self._consumer is not None:
            self._consumer.apply(self._registry.policies(), self._registry.unsupported())

    async def _keep_reporting(self) -> None:
        pause = self._rhythm.pause
        while True:
            await asyncio.sleep(self._rhythm.look)
            if await self._report_all():
                pause = self._rhythm.pause
            else:
                await asyncio.sleep(pause)
                pause = min(2 * pause, self._rhythm.longest)

    async def _report_all(self) -> bool:
        """Store every status that is due; whether all went well. One that is refused holds up no other."""
        good = True
        for board in list(self._boards.values()):
            try:
                await self._report(board)
            except (ApiError, AccessError) as error:
                self._failed(error)
                if not isinstance(error, ApiError) or error.code is None:
                    return False  # nobody answers: the others would wait in vain
                board.held(time.monotonic())
                good = False
        return good

    async def _report(self, board: Board) -> None:
        patch = board.due(time.monotonic())
        if patch is None:
            return
        try:
            await self._api.store_status(patch.name, patch.uid, patch.status)
        except ApiError as error:
            if error.code in (_GONE, _ANOTHER):
                self._lost(patch, error)
            raise
        board.sent(patch, time.monotonic())
        await self._tell(patch)

    def _lost(self, patch: Patch, error: ApiError) -> None:
        """The resource is gone, or another has its name: the watch has missed that."""
        if error.code == _GONE and self._registry.gone(patch.uid):
            self._apply()
        self._relist.set()

    async def _tell(self, patch: Patch) -> None:
        if time.monotonic() < self._silent_until:
            return
        for turn in events.worth_telling(patch.turns):
            try:
                await self._api.post_event(events.event(turn, patch.name, patch.uid, self._instance, self._wall()))
            except ApiError as error:  # an Event is worth no second try
                if error.code != _FORBIDDEN:
                    raise
                _LOG.info("Events are not told: the service account may not create them")
                self._silent_until = time.monotonic() + _SILENCE
                return

    def _failed(self, error: Exception) -> None:
        self._error = str(error)
        _LOG.warning("Kubernetes: %s", error)


def _hand_over(
    loop: asyncio.AbstractEventLoop,
    saw: Callable[[str | None, Mapping[str, Any]], None],
    kind: str | None,
    resource: Mapping[str, Any],
) -> None:
    """From the watch's thread into the load loop's; after the loop's end there is nobody to tell."""
    try:
        loop.call_soon_threadsafe(saw, kind, resource)
    except RuntimeError:
        _LOG.debug("an event came after the end")
