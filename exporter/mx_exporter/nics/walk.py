"""Looks at devices one after another, and goes on without one whose files do not answer.

Reading a counter can be a question to the NIC's firmware, which may not answer for a minute. The looking is done by a
thread that is left behind when it makes no progress; its device is passed over until that thread comes back.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

_LOG = logging.getLogger("mx_exporter")
_T = TypeVar("_T")


def _seen(look: Callable[[str], _T], name: str) -> _T | None:
    """What a look saw; None when it could not."""
    try:
        return look(name)
    except Exception:  # noqa: BLE001 - one bad device must not end the walk
        _LOG.exception("%s could not be looked at", name)
        return None


class _Round(Generic[_T]):
    """Devices to look at, and what was seen of them so far."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names
        self.seen: dict[str, _T | None] = {}
        self.over = threading.Event()
        self.left_behind = False  # whoever waited has gone on: no more looking


class _Worker(Generic[_T]):
    """One thread that goes through rounds."""

    def __init__(self, look: Callable[[str], _T]) -> None:
        self._look = look
        self._rounds: queue.SimpleQueue[_Round[_T] | None] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self._run, name="mx-walk", daemon=True)
        self.thread.start()

    def hand(self, names: _Round[_T] | None) -> None:
        """One more round; None ends the thread."""
        self._rounds.put(names)

    def _run(self) -> None:
        while (names := self._rounds.get()) is not None:
            for name in names.names:
                if names.left_behind:
                    return
                names.seen[name] = _seen(self._look, name)
            names.over.set()


class Walk(Generic[_T]):
    """Walks over devices by name. For one thread at a time."""

    def __init__(self, look: Callable[[str], _T], patience: float | None = 0.5) -> None:
        """Starts nothing yet.

        Args:
            look: Looks at one device; called in a thread of the walk's own.
            patience: Seconds that one device may take before the walk goes on without it; None: as long as it takes,
                in the calling thread.
        """
        self._look = look
        self._patience = patience
        self._worker: _Worker[_T] | None = None
        self._left: dict[str, threading.Thread] = {}  # devices whose thread was left behind with them

    def over(self, names: Sequence[str]) -> dict[str, _T | None]:
        """What was seen of each device, in order; None of one that did not answer or could not be looked at."""
        if self._patience is None:
            return {name: _seen(self._look, name) for name in names}
        self._left = {name: thread for name, thread in self._left.items() if thread.is_alive()}
        rest = [name for name in names if name not in self._left]
        seen: dict[str, _T | None] = {}
        while rest:
            seen.update(self._round(rest, self._patience))
            rest = [name for name in rest if name not in seen and name not in self._left]
        return {name: seen.get(name) for name in names}

    def stop(self) -> None:
        """Ends the thread, unless it is waiting for a device."""
        if self._worker is not None:
            self._worker.hand(None)
            self._worker = None

    def _round(self, names: list[str], patience: float) -> dict[str, _T | None]:
        """Looks at these in order, until one does not answer; that one is then in `_left`.

        The whole list is handed over at once: a hand-over for each would cost a wait for the interpreter's lock each,
        which is long while another thread reads a large page.
        """
        if self._worker is None:
            self._worker = _Worker(self._look)
        names_now = _Round[_T](names)
        self._worker.hand(names_now)
        before = 0
        while not names_now.over.wait(patience):
            done = len(names_now.seen)
            if done == before and done < len(names):
                return self._leave(names_now, names[done])
            before = done
        return names_now.seen

    def _leave(self, names: _Round[_T], name: str) -> dict[str, _T | None]:
        """Goes on without the thread that is waiting for this device."""
        assert self._worker is not None
        _LOG.warning("%s does not answer: going on without it", name)
        names.left_behind = True
        self._worker.hand(None)  # should it be between two devices
        self._left[name] = self._worker.thread
        self._worker = None
        return {seen: look for seen, look in list(names.seen.items()) if seen != name}
