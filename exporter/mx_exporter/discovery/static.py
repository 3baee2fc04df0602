"""Static discovery: the sources that a file names, read again when it changes."""

from __future__ import annotations

import logging
import os
import pathlib
import threading
import time
from collections.abc import Callable

from mx_exporter.discovery import sources_file
from mx_exporter.documents import read
from mx_exporter.errors import ConfigurationError
from mx_exporter.model import Source

_log = logging.getLogger(__name__)
_Stamp = tuple[int, int, int]


class StaticDiscovery:
    """Follows a sources file. A change that cannot be read leaves what was known and lets its age grow."""

    def __init__(self, path: pathlib.Path, clock: Callable[[], float] = time.monotonic, poll: float = 1.0) -> None:
        self._path = path
        self._clock = clock
        self._poll = poll
        self._known: tuple[tuple[Source, ...], float] | None = None
        self._stamp: _Stamp | None = None
        self._complaint: str | None = None
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Read the file, then watch it from a thread.

        Raises:
            ConfigurationError: The file cannot be read or does not say what it should.
        """
        self._load()
        self._thread = threading.Thread(target=self._watch, name="mx-sources-file", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def sources(self) -> tuple[Source, ...]:
        """What the file says, ordered by pod."""
        return self._known[0] if self._known else ()

    def age(self) -> float | None:
        """Seconds since the file was last seen to be as read; None before it was read."""
        return self._clock() - self._known[1] if self._known else None

    def refresh(self) -> None:
        """Look at the file once, and read it where it changed. Raises nothing."""
        try:
            if self._known is not None and _stamp(self._path) == self._stamp:
                self._known = (self._known[0], self._clock())
            else:
                self._load()
                _log.info("%s: read again, %d sources", self._path, len(self.sources()))
            self._complaint = None
        except (ConfigurationError, OSError) as error:
            if str(error) != self._complaint:
                _log.warning("%s; what was read before stays in force", error)
            self._complaint = str(error)

    def _load(self) -> None:
        # The stamp is taken first: a change between the two is then read once more, not missed.
        stamp = _stamp(self._path) if self._path.exists() else None
        sources = sources_file.parse(read(self._path, "a file of sources"), str(self._path))
        self._known, self._stamp = (sources, self._clock()), stamp

    def _watch(self) -> None:
        while not self._ended.wait(self._poll):
            self.refresh()


def _stamp(path: pathlib.Path) -> _Stamp:
    # A mounted ConfigMap changes by a symlink, hence the inode.
    status = os.stat(path)
    return status.st_mtime_ns, status.st_size, status.st_ino
