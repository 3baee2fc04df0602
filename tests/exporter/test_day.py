"""A day in two minutes: the exporter's own process, 200 places where pods come and go, a fifth of them hostile."""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import os
import pathlib
import random
import re
import statistics
import sys
import time
import urllib.request
from collections.abc import Iterator

import pytest
import yaml

from mx_lab.processes import Process, free_port
from tests.exporter.engines.servers import Answer, EngineServer
from tests.exporter.trees import nodes

PLACES = 200
SECONDS = 120.0 if os.environ.get("MX_TEST_LONG") else 8.0
GROWTH_MB = 2.0
#: The file is looked at every second and the page made anew every second; the rest is a busy machine's.
NOTICE = 2.6

_FILLER = b"".join(b'vllm:e2e_request_latency_seconds_bucket{engine="0",le="%d"} 7\n' % i for i in range(1000))
_GAUGE = b'vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.5\nvllm:generation_tokens_total{engine="0"} 5\n'
_GARBAGE = random.Random(0).randbytes(200_000)
HOSTILE = {
    "hangs": Answer(hang=True),
    "resets": Answer(_FILLER, reset_after=1000),
    "garbage": Answer(_GARBAGE),
    "garbage of wanted names": Answer(
        b"".join(b"vllm:kv_cache_usage_perc{" + _GARBAGE[i : i + 40].replace(b"\n", b"") + b"\n" for i in range(3000))
    ),
    "50 MB": Answer(_FILLER * (50_000_000 // len(_FILLER))),
    "a bomb": Answer(gzip.compress(b"\0" * (100 << 20), 1), headers=(("Content-Encoding", "gzip"),)),
    "new ranks each time": Answer(b"".join(b'vllm:kv_cache_usage_perc{engine="%d"} 0.5\n' % i for i in range(4000))),
    "digits": Answer(b"vllm:kv_cache_usage_perc " + b"9" * 60_000 + b"x\n" + _GAUGE),
    "long lines": Answer(b"".join(b'vllm:kv_cache_usage_perc{x="%b"} 1\n' % (b"y" * 60_000) for _ in range(200))),
    "cookies": Answer(_GAUGE, headers=(("Set-Cookie", "a=" + "b" * 3000),)),
}


@dataclasses.dataclass
class Fleet:
    """The pods of this moment, in a sources file; every change gives new pods new names and uids."""

    file: pathlib.Path
    ports: dict[str, int]
    random: random.Random
    pods: dict[int, str] = dataclasses.field(default_factory=dict)
    history: list[tuple[float, frozenset[str]]] = dataclasses.field(default_factory=list)
    born: int = 0

    def change(self) -> None:
        for place in self.random.sample(range(PLACES), 20):
            if place in self.pods:
                del self.pods[place]
            else:
                self.born += 1
                self.pods[place] = f"pod-{place}-{self.born}"
        sources = [self._source(place, name) for place, name in self.pods.items()]
        written = self.file.with_suffix(".new")
        written.write_text(yaml.dump({"sources": sources}, Dumper=yaml.CSafeDumper))
        written.rename(self.file)
        self.history.append((time.monotonic(), frozenset(self.pods.values())))

    def _source(self, place: int, name: str) -> dict[str, object]:
        kinds = list(HOSTILE)
        kind = kinds[place % len(kinds)] if place % 5 == 0 else "good"
        pod = {"namespace": "day", "name": name, "uid": f"uid-{name}", "ip": address(place)}
        return {"pod": pod, "endpoints": [{"port": self.ports[kind]}], "nics": [f"mlx5_{place % 8}"]}

    def allowed(self, at: float) -> frozenset[str]:
        """The pods that a page read at this time may speak of."""
        old = [names for when, names in self.history if when <= at - NOTICE][-1:]
        young = [names for when, names in self.history if when > at - NOTICE]
        return frozenset().union(*old, *young)


def address(place: int) -> str:
    return f"127.1.{place // 100}.{place % 100 + 1}"


@pytest.fixture
def ports() -> Iterator[dict[str, int]]:
    """A server for each kind of engine, on every place's address."""
    hosts = [address(place) for place in range(PLACES)]
    with contextlib.ExitStack() as stack:
        found = {}
        for kind, answer in {"good": Answer(_FILLER + _GAUGE), **HOSTILE}.items():
            server = EngineServer({"/metrics": answer}, host=hosts, port=free_port(), remember=False)
            found[kind] = stack.enter_context(server).port
        yield found


def page(url: str) -> str:
    with urllib.request.urlopen(url, timeout=5) as answer:
        return str(answer.read().decode())


def resident(pid: int) -> float:
    """Resident memory in MB."""
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(re.findall(r"VmRSS:\s+(\d+)", status)[0]) / 1024


@pytest.mark.timeout(300)
def test_a_day(tmp_path: pathlib.Path, ports: dict[str, int]) -> None:
    fleet = Fleet(tmp_path / "sources.yaml", ports, random.Random(1))
    for _ in range(8):
        fleet.change()
    node = nodes.eight_rails(tmp_path / "node")
    url = f"127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "mx_exporter.cli", "--listen", url, "--sysfs", str(node.sysfs)]
    command += ["--discovery", "static", "--sources", str(fleet.file)]
    process = Process("mx-exporter", command, tmp_path / "log")
    try:
        process.wait_ready(lambda: _answers(f"http://{url}/metrics"), 20)
        memory, usages, gone = _live(fleet, process.pid, f"http://{url}/metrics")
    finally:
        process.kill()
    half = len(memory) // 2
    window = max(2, len(memory) // 6)
    growth = statistics.median(memory[-window:]) - statistics.median(memory[half : half + window])
    log = (tmp_path / "log").read_text()
    seen = f"{fleet.born} pods, {memory[half]:.1f} MB at half, {memory[-1]:.1f} MB at the end, {growth:+.2f} MB"
    sys.stderr.write(seen + "\n")
    assert not gone, gone
    assert "Traceback" not in log
    # About 80 good pods are there at a time; half of their short lives passes until they are found and read.
    assert statistics.median(usages) > 25
    assert growth < GROWTH_MB, memory
    assert max(memory) < 60, memory


def _answers(url: str) -> bool:
    try:
        return "mx_kv_cache_usage" in page(url)
    except OSError:
        return False


def _live(fleet: Fleet, pid: int, url: str) -> tuple[list[float], list[int], set[str]]:
    """Change the fleet and read the page, again and again; memory each second, usages seen, pods that outstayed."""
    memory, usages, gone = [], [], set()
    end, second = time.monotonic() + SECONDS, 0
    while time.monotonic() < end:
        fleet.change()
        time.sleep(0.4)
        asked = time.monotonic()
        found = page(url)
        gone |= set(re.findall(r'k8s_pod_name="([^"]+)"', found)) - fleet.allowed(asked)
        usages.append(found.count("\nmx_kv_cache_usage{"))
        if second != int(asked):
            second = int(asked)
            memory.append(resident(pid))
    return memory, usages, gone
