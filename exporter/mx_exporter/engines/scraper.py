"""The scraper: one thread that keeps reading every engine's page and remembers what each said."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import math
import threading
import time
from collections.abc import Callable, Mapping

from mx_exporter.discovery import Discovery
from mx_exporter.engines import gauges, pages, readings, results, retries, targets
from mx_exporter.engines.settings import ScrapeSettings
from mx_exporter.engines.status import ScrapeStatus
from mx_exporter.engines.targets import Target
from mx_exporter.loops import LoopThread
from mx_exporter.model import Pod, Source, Usage

_log = logging.getLogger(__name__)
#: How often the sources are looked at for new ones and gone ones.
_LOOK = 0.25
#: How long one look waits for a discovery that has yet to hear from somebody.
_FIRST_ANSWER = 5.0
#: What another path of the same port may mend.
_OTHER_PATH = frozenset({"json", "not_found", "not_metrics", "empty", "http_status", "redirect"})


class Engines:
    """Scrapes the pages of the sources that `discovery` knows. Readers never block and never see a gone pod."""

    def __init__(
        self,
        discovery: Discovery,
        settings: ScrapeSettings | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._discovery = discovery
        self._settings = settings or ScrapeSettings()
        self._clock = clock
        self._table = gauges.builtin()
        self._states: dict[Target, results.State] = {}
        self._lock = threading.Lock()
        self._planned: tuple[tuple[Source, ...], targets.Plan] = ((), targets.plan(()))
        self._thread: LoopThread | None = None

    def start(self) -> None:
        """Begin to scrape in a thread of its own.

        Raises:
            ConfigurationError: A file that the settings name cannot be used.
        """
        self._prepare()
        self._thread = LoopThread("mx-engines", self._run)
        self._thread.start()

    def stop(self) -> None:
        """End it; returns when the thread has ended."""
        if self._thread is not None:
            self._thread.stop()

    def scrape_once(self, *, lasting: bool = True) -> None:
        """Read every page once and return: what `--once` does instead of `start`.

        Args:
            lasting: What was read stands however long the look takes; else it grows old as usual.

        Raises:
            ConfigurationError: A file that the settings name cannot be used.
        """
        if lasting:
            self._settings = dataclasses.replace(self._settings, keep_intervals=math.inf)
        self._prepare()
        give_up = time.monotonic() + _FIRST_ANSWER
        while self._discovery.age() is None and time.monotonic() < give_up:
            time.sleep(0.05)
        thread = LoopThread("mx-engines-once", self._once)
        thread.start()
        thread.join()

    def usages(self) -> Mapping[Pod, tuple[Usage, ...]]:
        """Of every source known now, at least one usage; a source that says nothing has one with a reason."""
        return results.usages(self._plan(), self._snapshot(), self._settings, self._clock())

    def scrapes(self) -> tuple[ScrapeStatus, ...]:
        """The last scrape of every page of every source known now."""
        return results.statuses(self._plan(), self._snapshot())

    def _prepare(self) -> None:
        pages.check(self._settings)
        self._table = gauges.load(self._settings.gauges_file)

    def _plan(self) -> targets.Plan:
        """The plan for the sources of this moment; made anew only when they changed."""
        sources = self._discovery.sources()
        known, plan = self._planned
        if sources != known:
            plan = targets.plan(sources)
            self._planned = (sources, plan)
        return plan

    def _snapshot(self) -> dict[Target, results.State]:
        with self._lock:
            return dict(self._states)

    async def _once(self) -> None:
        reader = pages.Pages(self._table, self._settings)
        try:
            await asyncio.gather(*(self._attempt(reader, target) for target in self._plan().targets))
        finally:
            await reader.close()

    async def _run(self) -> None:
        reader = pages.Pages(self._table, self._settings)
        following: dict[Target, asyncio.Task[None]] = {}
        try:
            while True:
                wanted = self._plan().targets
                for gone in following.keys() - set(wanted):
                    self._forget(gone, following.pop(gone))
                for new in wanted:
                    if new not in following:
                        following[new] = asyncio.create_task(self._follow(reader, new))
                await asyncio.sleep(_LOOK)
        finally:
            for task in following.values():
                task.cancel()
            await asyncio.gather(*following.values(), return_exceptions=True)
            await reader.close()

    def _forget(self, target: Target, task: asyncio.Task[None]) -> None:
        # The state goes when the task has ended: an attempt that is just ending would bring it back.
        task.add_done_callback(lambda _: self._drop(target))
        task.cancel()

    def _drop(self, target: Target) -> None:
        with self._lock:
            self._states.pop(target, None)

    async def _follow(self, reader: pages.Pages, target: Target) -> None:
        await asyncio.sleep(retries.offset(f"{target.pod.uid}{target.pod.ip}{target.port}", self._settings.interval))
        while True:
            began = self._clock()
            state = await self._attempt(reader, target)
            pause = retries.delay(state.failures, self._settings.interval, self._longest(state))
            await asyncio.sleep(max(0.0, began + pause - self._clock()))

    def _longest(self, state: results.State) -> float:
        """A refusal costs nothing to hear, and its end is the start of an engine: it is not left waiting long."""
        most = self._settings.max_backoff
        return min(most, 2 * self._settings.interval) if state.reason == "refused" else most

    async def _attempt(self, reader: pages.Pages, target: Target) -> results.State:
        began = self._clock()
        before = self._states.get(target, results.State())
        try:
            state = await self._read(reader, target, before, began)
        except Exception:  # noqa: BLE001 - whatever a page brought about, it is this target's alone
            _log.exception("%s:%d: the page could not be read for an unforeseen reason", target.pod.ip, target.port)
            state = results.failed(before, {"": "internal"}, began, self._clock())
        with self._lock:
            self._states[target] = state
        _say(target, before, state)
        return state

    async def _read(self, reader: pages.Pages, target: Target, before: results.State, began: float) -> results.State:
        reasons: dict[str, str] = {}
        bad_lines = 0
        for path in before.paths(target):
            try:
                page = await reader.read(target, path)
            except pages.PageError as error:
                _log.debug("%s:%d%s: %s", target.pod.ip, target.port, path, error)
                reasons[path] = error.reason
                if error.reason not in _OTHER_PATH:
                    break
                continue
            found = readings.read(self._table, page.lines)
            if found.readings:
                return results.good(before, path, found, page.overlong, began, self._clock())
            bad_lines += found.bad_lines + page.overlong
            reasons[path] = "unreadable" if page.overlong else "no_gauge"
        return results.failed(before, reasons, began, self._clock(), bad_lines)


def _say(target: Target, before: results.State, after: results.State) -> None:
    """One line when a target begins or ceases to answer, fails differently, or shows lines that cannot be read."""
    where = f"{target.pod.namespace}/{target.pod.name} ({target.pod.ip}:{target.port})"
    if after.bad_lines and not before.bad_lines:
        _log.warning("%s: %d lines of metrics that are read are no samples", where, after.bad_lines)
    if before.reason == after.reason:
        return
    if after.reason is None:
        _log.info("%s: %s answers", where, ", ".join(sorted({reading.engine for reading in after.readings})))
    else:
        _log.info("%s: no usage: %s", where, after.reason)
