"""The real parts of the path, as child processes: Prometheus, the embedded server, exporters, the operator."""

from __future__ import annotations

import dataclasses
import pathlib
import sys
import urllib.error
import urllib.request
from typing import Any

import yaml

from mx_lab.fleet import ENGINE_PORT, EXPORTER_PORT, Fleet, Node
from mx_lab.processes import Process, free_port, listens
from mx_lab.settings import Settings
from mx_lab.sources import pod_uid

_HOST = "127.0.0.1"


@dataclasses.dataclass(frozen=True)
class Addresses:
    """Where the parts listen."""

    prometheus: str
    server: str
    server_metrics: str
    operator: str
    selector_metrics: str

    @classmethod
    def free(cls) -> Addresses:
        """Ports that nobody listens on just now."""
        return cls(*(f"{_HOST}:{free_port()}" for _ in dataclasses.fields(cls)))


def answers(address: str, path: str) -> bool:
    """Whether `http://address/path` answers with 200."""
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=1) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def door(name: str) -> str:
    """The console script `name` of the environment this runs in."""
    return str(pathlib.Path(sys.executable).with_name(name))


class Parts:
    """Starts the parts in `folder`; what was started is in `processes`, to be stopped by the caller."""

    def __init__(self, settings: Settings, fleet: Fleet, folder: pathlib.Path, processes: list[Process]) -> None:
        self.settings, self.fleet, self.folder, self.processes = settings, fleet, folder, processes
        self.addresses = Addresses.free()

    def links(self) -> str:
        """Where a person can look while it runs."""
        node, has = self.fleet.nodes[0], self.settings.without
        pages = {
            "Prometheus": f"{self.addresses.prometheus}/graph?g0.expr=mx_p2p_source_load&g0.tab=0",
            "operator": "" if "operator" in has else f"{self.addresses.operator}/status",
            "exporter": "" if "exporter" in has else f"{node.ip}:{EXPORTER_PORT}/metrics",
            "an engine": f"{node.sources[0].ip}:{ENGINE_PORT}/metrics",
        }
        shown = [f"{name} http://{page}" for name, page in pages.items() if page]
        return " | ".join([*shown, f"mx-select rank --server {self.addresses.server}"])

    def server(self) -> Process:
        """The embedded MX server, its times scaled to the lab's heartbeat."""
        heartbeat = self.settings.heartbeat
        command = [door("mx-server"), "--backend=memory", f"--listen={self.addresses.server}"]
        command += [f"--metrics-listen={self.addresses.server_metrics}"]
        command += [f"--heartbeat-timeout={3 * heartbeat:g}", f"--reaper-interval={heartbeat:g}"]
        if self.settings.server_drops_load:
            command.append("--drop-load")
        return self._start("mx-server", command)

    def server_ready(self) -> bool:
        """Whether it accepts connections."""
        return listens(int(self.addresses.server.rpartition(":")[2]))

    def exporter(self, node: Node, sysfs: pathlib.Path) -> Process:
        """One node's exporter."""
        file = self.folder / f"node-{node.number}-sources.yaml"
        file.write_text(yaml.safe_dump({"sources": [_static(source) for source in node.sources]}))
        command = [door("mx-exporter"), f"--listen={node.ip}:{EXPORTER_PORT}", f"--sysfs={sysfs}"]
        return self._start(f"mx-exporter-{node.number}", [*command, "--discovery=static", f"--sources={file}"])

    def prometheus(self) -> Process:
        """A Prometheus as a platform team has one, scraping all of it."""
        (self.folder / "prometheus.yml").write_text(yaml.safe_dump(self._scrapes()))
        command = ["prometheus", f"--config.file={self.folder / 'prometheus.yml'}"]
        command += [f"--storage.tsdb.path={self.folder / 'data'}", f"--web.listen-address={self.addresses.prometheus}"]
        return self._start("prometheus", [*command, "--log.level=warn"])

    def operator(self) -> Process:
        """The operator in file mode."""
        file = self.folder / "policy.yaml"
        file.write_text(yaml.safe_dump(self._policy()))
        command = [door("mx-operator"), "run", f"--policy={file}", f"--listen={self.addresses.operator}"]
        return self._start("mx-operator", command)

    def _start(self, name: str, command: list[str]) -> Process:
        process = Process(name, command, self.folder / f"{name}.log")
        self.processes.append(process)
        return process

    def _scrapes(self) -> dict[str, Any]:
        interval = f"{self.settings.scrape:g}s"
        jobs = {
            "mx-exporter": [f"{node.ip}:{EXPORTER_PORT}" for node in self.fleet.nodes],
            "engine": [f"{source.ip}:{ENGINE_PORT}" for source in self.fleet],
            "mx-operator": [self.addresses.operator],
            "mx-server": [self.addresses.server_metrics],
            "mx-target": [self.addresses.selector_metrics],
        }
        return {
            "global": {"scrape_interval": interval, "scrape_timeout": interval},
            "scrape_configs": [
                {"job_name": job, "static_configs": [{"targets": targets}]} for job, targets in jobs.items()
            ],
        }

    def _policy(self) -> dict[str, Any]:
        signal = {"name": "exporter", "query": "mx_source_load", "joinLabel": "k8s_pod_ip", "deviceLabel": "gpu"}
        spec: dict[str, Any] = {
            "mode": "write",
            "server": {"address": self.addresses.server},
            "prometheus": {"url": f"http://{self.addresses.prometheus}"},
            "sourceHeartbeat": f"{self.settings.heartbeat:g}s",
            "signals": [signal],
        }
        if self.settings.interval is not None:
            spec["interval"] = f"{self.settings.interval:g}s"
        return {
            "apiVersion": "sourceload.dev/v1alpha1",
            "kind": "SourceLoadPolicy",
            "metadata": {"name": "lab"},
            "spec": spec,
        }


def _static(source: Any) -> dict[str, Any]:
    pod = {"namespace": "lab", "name": source.name, "uid": pod_uid(source), "ip": source.ip}
    return {"pod": pod, "endpoints": [{"port": ENGINE_PORT}], "nics": [source.device]}
