"""What selection says of itself, in verbs; sinks carry it out of the process.

`selection`, `attempts` and `ranking` call this. Nothing here raises: a sink that fails is dropped with one line in the
log, and recording goes on without it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from typing import Any, Protocol

from mx_selector import settings
from mx_selector.model import Funnel
from mx_selector.telemetry import events
from mx_selector.telemetry.families import Update


class Sink(Protocol):
    """Somewhere that updates go. Sinks may raise; the recorder does not."""

    def record(self, updates: Sequence[Update]) -> None:
        """Take the updates of one event."""


class Recorder:
    """Translates verbs into updates and hands them to each sink."""

    def __init__(self, sinks: Sequence[Sink] = (), labels: events.Labels | None = None) -> None:
        self._sinks = list(sinks)
        self._labels = labels or events.Labels()
        self._lock = threading.Lock()

    def fell_back(self, policy: str, reason: str) -> None:
        """A policy failed with an error of the kind `reason`."""
        self._send(events.fell_back, policy, reason)

    def listed(self, policy: str, result: str) -> None:
        """The server was asked for sources and the answer was `ok`, `empty` or `error`."""
        self._send(events.listed, policy, result)

    def selected(self, policy: str, funnel: Funnel, sources: Sequence[Any], seconds: float) -> None:
        """Candidates were ordered in `seconds`; `sources` are the best of them."""
        self._send(events.selected, policy, funnel, sources, seconds)

    def chosen(self, policy: str, ordered: Sequence[Any]) -> None:
        """Candidates were ordered for a client that records the rest itself."""
        self._send(events.chosen, ordered, policy)

    def phase(self, policy: str, phase: str, outcome: str, seconds: float) -> None:
        """A phase of an attempt ended `ok` or `error`."""
        self._send(events.phase, policy, phase, outcome, seconds)

    def metadata_failed(self, policy: str) -> None:
        """A metadata lookup raised."""
        self._send(events.metadata_failed, policy)

    def attempted(self, source: Any, policy: str, result: str, seconds: float | None) -> None:
        """An attempt ended; `seconds` is the transfer's time, None where none was started."""
        self._send(events.attempted, source, policy, result, seconds)

    def started(self, version: str) -> None:
        """This process records from now on."""
        self._send(events.started, version)

    def close_after_fork(self) -> None:
        """In a forked child: let go of what is the parent's."""
        for sink in self._sinks:
            closing = getattr(sink, "close_after_fork", None)
            if closing is not None:
                with contextlib.suppress(OSError):
                    closing()

    def _send(self, event: Any, *arguments: Any) -> None:
        if not self._sinks:
            return
        try:
            updates = event(self._labels, *arguments)
        except Exception as error:  # noqa: BLE001 - telemetry never raises into a load
            settings.say_once(f"metrics: cannot describe a selection: {error!r}")
            return
        for sink in tuple(self._sinks):
            self._feed(sink, updates)

    def _feed(self, sink: Sink, updates: Sequence[Update]) -> None:
        try:
            sink.record(updates)
        except Exception as error:  # noqa: BLE001
            settings.say_once(f"metrics: {type(sink).__name__} failed and is switched off: {error!r}")
            with self._lock:
                if sink in self._sinks:
                    self._sinks.remove(sink)
