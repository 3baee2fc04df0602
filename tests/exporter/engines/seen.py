"""What the exporter makes of pages: real HTTP, the real scraper, the real page, of which the lines about engines."""

from __future__ import annotations

import pathlib
import re

from mx_exporter.engines import Engines, ScrapeSettings
from mx_exporter.model import Endpoint, Pod, Source
from tests.exporter.engines.servers import EngineServer
from tests.exporter.looking import Clock, KnownSources, Looking
from tests.exporter.trees import Node

POD = Pod("serving", "llama-0", "6f1c", "127.0.0.1")
_OURS = re.compile(r"(?:mx_kv_cache_usage|mx_source_load|mx_exporter_unknown|mx_exporter_target_up)\{")
_LABELS = 'k8s_namespace_name="serving",k8s_pod_ip="127.0.0.1",k8s_pod_name="llama-0",k8s_pod_uid="6f1c"'


def source(*servers: EngineServer, pod: Pod = POD, path: str | None = None) -> Source:
    return Source(pod, tuple(Endpoint(server.port, path) for server in servers))


class Watched:
    """An exporter that looks at engines: a virtual clock, no threads, a node without NICs."""

    def __init__(self, folder: pathlib.Path, *sources: Source, settings: ScrapeSettings | None = None) -> None:
        self.discovery = KnownSources(sources)
        self.clock = Clock()
        self.engines = Engines(self.discovery, settings, self.clock)
        self.looking = Looking(Node(folder), *sources)
        self.looking.discovery = self.discovery
        self.looking.ticker._discovery = self.discovery  # the same one, so that a pod goes from both at once

    def scrape(self, after: float = 2.0) -> None:
        """Read every page once, this many seconds later."""
        self.clock.now += after
        self.engines.scrape_once(lasting=False)

    def page(self) -> str:
        """What the exporter's page says of engines and sources, in short: the pod's labels as POD, ports by number."""
        self.looking.engines.known = self.engines.usages()
        self.looking.engines.scraped = self.engines.scrapes()
        self.looking.tick()
        lines = [line for line in self.looking.page().splitlines() if _OURS.match(line)]
        ports = [str(endpoint.port) for one in self.discovery.known for endpoint in one.endpoints]
        text = "\n".join(lines).replace(_LABELS, "POD")
        for number, port in enumerate(ports):
            text = text.replace(f'target_port="{port}"', f'target_port="#{number}"')
        return text
