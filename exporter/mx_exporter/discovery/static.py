"""Static discovery: the sources that a file names, read again when it changes."""

from __future__ import annotations

import pathlib
import time
from collections.abc import Callable

from mx_exporter.model import Source


class StaticDiscovery:
    """Follows a sources file. A change that cannot be read leaves what was known and lets its age grow."""

    def __init__(self, path: pathlib.Path, clock: Callable[[], float] = time.monotonic, poll: float = 1.0) -> None:
        self._path = path
        self._clock = clock
        self._poll = poll

    def start(self) -> None:
        """Read the file, then watch it from a thread.

        Raises:
            ConfigurationError: The file cannot be read or does not say what it should.
        """

    def stop(self) -> None:
        """End the thread."""

    def sources(self) -> tuple[Source, ...]:
        """What the file says, ordered by pod."""
        return ()

    def age(self) -> float | None:
        """Seconds since the file was last seen to be as read."""
        return None
