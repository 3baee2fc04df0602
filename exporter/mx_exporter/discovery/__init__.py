"""Which sources run on this node: the seam between the exporter and whoever knows its pods.

Called by the shell, which starts one discovery and hands it to the engines' scraper and to the mapping. Three kinds:
`static` (a file, reloaded when it changes), `kubernetes` (the pods of this node) and `none` (NICs only).
"""

from __future__ import annotations

from typing import Protocol

from mx_exporter.model import Source


class Discovery(Protocol):
    """Knows the sources of this node. `sources` and `age` are cheap, never block and may be called from any thread."""

    def start(self) -> None:
        """Begin to look, in a thread of its own where that takes one.

        Raises:
            ConfigurationError: What it was given cannot be used; one line says what and how to mend it.
        """

    def stop(self) -> None:
        """End it; returns when its thread has ended. What was known stays readable."""

    def sources(self) -> tuple[Source, ...]:
        """The sources known now, ordered by pod; empty before the first answer."""

    def age(self) -> float | None:
        """Seconds since what `sources` says was last confirmed; None before the first answer."""


class NoDiscovery:
    """`--discovery none`: there are no sources, and that is always up to date."""

    def start(self) -> None:
        """Nothing to begin."""

    def stop(self) -> None:
        """Nothing to end."""

    def sources(self) -> tuple[Source, ...]:
        """None, always."""
        return ()

    def age(self) -> float | None:
        """Zero: nothing can have changed."""
        return 0.0
