"""Kubernetes discovery: this node's pods, listed once and watched, kept through an outage of the API server."""

from __future__ import annotations

import time
from collections.abc import Callable

from mx_exporter.discovery.settings import KubernetesSettings
from mx_exporter.model import Source


class KubernetesDiscovery:
    """Lists and watches the pods of one node from a thread of its own."""

    def __init__(self, settings: KubernetesSettings | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings or KubernetesSettings()
        self._clock = clock

    def start(self) -> None:
        """Begin to watch.

        Raises:
            ConfigurationError: The node's name or the API server is not known.
        """

    def stop(self) -> None:
        """End the thread."""

    def sources(self) -> tuple[Source, ...]:
        """The sources among the node's pods, ordered by pod."""
        return ()

    def age(self) -> float | None:
        """Seconds since the API server last said anything; None before the first list."""
        return None
