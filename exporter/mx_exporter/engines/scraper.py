"""The scraper: one thread that keeps reading every engine's page and remembers what each said."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from mx_exporter.discovery import Discovery
from mx_exporter.engines.settings import ScrapeSettings
from mx_exporter.engines.status import ScrapeStatus
from mx_exporter.model import Pod, Usage


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

    def start(self) -> None:
        """Begin to scrape in a thread of its own.

        Raises:
            ConfigurationError: A file that the settings name cannot be used.
        """

    def stop(self) -> None:
        """End it; returns when the thread has ended."""

    def scrape_once(self) -> None:
        """Read every page once, in this thread, and return: what `--once` does instead of `start`."""

    def usages(self) -> Mapping[Pod, tuple[Usage, ...]]:
        """Of every source known now, at least one usage; a source that says nothing has one with a reason."""
        return {}

    def scrapes(self) -> tuple[ScrapeStatus, ...]:
        """The last scrape of every page of every source known now."""
        return ()
