"""Puts the parts together: settings to a running exporter, and the order in which things start and stop."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

from opentelemetry.sdk.resources import Resource

from mx_exporter.access import Certificates, Gate
from mx_exporter.config import OtlpSettings, Settings, is_text
from mx_exporter.discovery import Discovery, NoDiscovery
from mx_exporter.engines import Engines
from mx_exporter.errors import ConfigurationError
from mx_exporter.exposition import Pages
from mx_exporter.mapping.kubelet import Kubelet
from mx_exporter.nics.sampler import NicSampler
from mx_exporter.nics.sysfs import Tree
from mx_exporter.serving import Server
from mx_exporter.snapshot import Present, Snapshot
from mx_exporter.telemetry import build_info
from mx_exporter.ticker import Ticker

if TYPE_CHECKING:
    from mx_exporter.otlp import Push

_LOG = logging.getLogger("mx_exporter")


class Exporter:
    """A whole exporter. Entering it starts everything, leaving it stops everything in the other order."""

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        """Makes all parts; nothing runs yet.

        Raises:
            ConfigurationError: A file that the settings name cannot be used.
        """
        self.settings = settings
        sysfs, procfs = Tree(settings.sysfs), Tree(settings.procfs)
        self.discovery = _discovery(settings)
        self.engines = Engines(self.discovery, settings.scrape)
        self.present = Present(max(5.0, 3 * settings.timing.interval), clock)
        self.kubelet = Kubelet(settings.pod_resources) if settings.pod_resources else None
        self.ticker = Ticker(
            NicSampler(sysfs, settings.timing, clock, settings.limits),
            self.discovery,
            self.engines,
            sysfs,
            procfs,
            self.present,
            self.kubelet,
            settings.timing.interval,
            clock,
        )
        described, start = resource(settings), time.time()
        gate, certificates = Gate(settings.auth), Certificates.of(settings.tls)
        self.server = Server(settings.host, settings.port, Pages(described, start), self.present, gate, certificates)
        self.push = _push(settings.otlp, described, start, self.present)
        self.address: tuple[str, int] | None = None

    def __enter__(self) -> Exporter:
        self.discovery.start()
        try:
            self.engines.start()
            if self.kubelet is not None:
                self.kubelet.start()
            self.ticker.start()
            self.address = self.server.start()
            if self.push is not None:
                self.push.start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        scheme, (host, port) = "https" if self.settings.tls.cert_file else "http", self.address
        _LOG.info("serving %s://%s:%d/metrics", scheme, f"[{host}]" if ":" in host else host, port)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.push is not None:
            self.push.stop()
        self.server.stop()
        self.ticker.stop()
        if self.kubelet is not None:
            self.kubelet.stop()
        self.engines.stop()
        self.discovery.stop()

    def look(self) -> Snapshot:
        """Looks for one window without serving anything: what `--once` shows.

        Raises:
            ConfigurationError: As from entering it.
        """
        self.discovery.start()
        try:
            if self.kubelet is not None:
                self.kubelet.ask()
            self.ticker.tick()
            self.engines.scrape_once()
            timing = self.settings.timing
            for _ in range(max(1, round(timing.window / timing.interval))):
                time.sleep(timing.interval)
                looked = self.ticker.tick()
            return looked
        finally:
            self.ticker.stop()
            self.discovery.stop()
            self.server.stop()


def _discovery(settings: Settings) -> Discovery:
    """The discovery that was asked for; the Kubernetes client is imported only where it is used."""
    if settings.discovery == "static":
        from mx_exporter.discovery.static import StaticDiscovery

        assert settings.sources is not None
        return StaticDiscovery(settings.sources)
    if settings.discovery == "kubernetes":
        from mx_exporter.discovery.kubernetes import KubernetesDiscovery

        return KubernetesDiscovery(settings.kubernetes)
    return NoDiscovery()


def _push(settings: OtlpSettings, described: Resource, start: float, present: Present) -> Push | None:
    """The OTLP push, where one is configured; what it takes is imported only then."""
    if settings.endpoint is None:
        return None
    from mx_exporter.otlp import Push

    return Push(settings, described, start, present.get)


def resource(settings: Settings) -> Resource:
    """What the metrics describe: this exporter on this node. OTEL_RESOURCE_ATTRIBUTES adds to it.

    Raises:
        ConfigurationError: An attribute is no text.
    """
    node = dict(settings.resource).get("k8s.node.name") or socket.gethostname()
    fixed = {
        "service.name": "mx-exporter",
        "service.version": build_info()["version"],
        # Not the SDK's random one: a restart is the same exporter.
        "service.instance.id": node,
    }
    made = Resource.create({**fixed, **dict(settings.resource)})
    for name, value in made.attributes.items():
        if not is_text(name + str(value)):
            raise ConfigurationError(f"resource attribute {name} {value!r}: not UTF-8: give text")
    return made
