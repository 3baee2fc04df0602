"""A real Prometheus: Debian's, or version 3 of the tool tier."""

from __future__ import annotations

import contextlib
import json
import pathlib
import shutil
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml

from mx_lab.processes import Process, free_port, wait_until
from tests.parts.tools import tool

NOBODY = 65534


class Prometheus:
    """A running server and how to ask it."""

    def __init__(self, port: int, folder: pathlib.Path) -> None:
        self.port, self.folder, self.process = port, folder, None
        self.url = f"http://127.0.0.1:{port}"

    process: Process | None

    def api(self, path: str, **parameters: str) -> Any:
        """The `data` of an API answer."""
        query = urllib.parse.urlencode(parameters)
        with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{query}", timeout=10) as answer:
            return json.load(answer)["data"]

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """An instant vector as (labels, value) pairs."""
        return [(s["metric"], float(s["value"][1])) for s in self.api("query", query=expression)["result"]]

    def wait_for(self, expression: str, count: int = 1, timeout: float = 20.0) -> list[tuple[dict[str, str], float]]:
        """The vector once it has at least `count` series (a first scrape comes about 5 s after the start)."""
        wait_until(lambda: len(self.query(expression)) >= count, timeout, f"{count} series of {expression}")
        return self.query(expression)

    def ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=1) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


def debian() -> pathlib.Path | None:
    """Debian's prometheus (2.42 on Debian 12)."""
    found = shutil.which("prometheus")
    return pathlib.Path(found) if found else None


def version_3() -> pathlib.Path | None:
    """The tool tier's Prometheus 3."""
    return tool("prometheus")


@contextlib.contextmanager
def prometheus(
    folder: pathlib.Path,
    targets: Mapping[str, Sequence[str]] | None = None,
    *,
    binary: pathlib.Path | None = None,
    interval: str = "1s",
    config: Mapping[str, Any] | None = None,
    rule_files: Sequence[pathlib.Path] = (),
    arguments: Sequence[str] = (),
    port: int | None = None,
) -> Iterator[Prometheus]:
    """Run one.

    Args:
        folder: Where its configuration, data and log go.
        targets: Scrape jobs: name to `host:port`s.
        binary: Debian's when None.
        interval: Scrape and evaluation interval.
        config: Merged over the configuration made from the rest (top-level keys).
        rule_files: Files of rules.
        arguments: Further command-line arguments.
        port: A free one when None.
    """
    program = binary or debian()
    assert program is not None, "no prometheus: run scripts/setup"
    folder.mkdir(parents=True, exist_ok=True)
    server = Prometheus(port or free_port(), folder)
    jobs = [{"job_name": job, "static_configs": [{"targets": list(at)}]} for job, at in (targets or {}).items()]
    settings = {
        "global": {"scrape_interval": interval, "scrape_timeout": interval, "evaluation_interval": interval},
        "scrape_configs": jobs,
        "rule_files": [str(path) for path in rule_files],
        **(config or {}),
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(settings))
    command: list[str | pathlib.Path] = [
        program,
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{server.port}",
        "--log.level=warn",
        *arguments,
    ]
    with Process("prometheus", command, folder / "prometheus.log") as process:
        server.process = process
        process.wait_ready(server.ready)
        yield server
