"""Eight engines with pages of 5 MB each: the ports are sampled on time all the same."""

from __future__ import annotations

import contextlib
import itertools
import os
import pathlib
import re
import sys
import time
import urllib.request

import yaml

from mx_lab.processes import Process, free_port
from tests.exporter.engines.servers import Answer, EngineServer
from tests.exporter.trees import nodes

_LINE = b'vllm:e2e_request_latency_seconds_bucket{engine="%d",le="%d.5",model_name="meta-llama/Llama-3.1"} %d.0\n'
_GAUGE = b'vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.5\n'
#: How long each half of the run takes, in ticks of a second.
TICKS = 8 if os.environ.get("MX_TEST_LONG") else 3


def timestamps(url: str, ticks: int) -> list[float]:
    """When that many ticks ended, as the page says."""
    found: list[float] = []
    while len(found) < ticks:
        with urllib.request.urlopen(url, timeout=5) as answer:
            (stamp,) = re.findall(r"\nmx_exporter_sample_timestamp_seconds (\S+)", answer.read().decode())
        if not found or float(stamp) != found[-1]:
            found.append(float(stamp))
        time.sleep(0.1)
    return found[1:]


def latest(stamps: list[float]) -> float:
    """By how much the most belated tick came after its second."""
    return max(after - before - 1.0 for before, after in itertools.pairwise(stamps))


def test_large_pages_do_not_delay_sampling(tmp_path: pathlib.Path) -> None:
    body = b"".join(_LINE % (i % 8, i, i) for i in range(50_000)) + _GAUGE
    assert len(body) > 5_000_000
    sources, node = tmp_path / "sources.yaml", nodes.eight_rails(tmp_path / "node")
    sources.write_text("sources: []\n")
    url = f"127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "mx_exporter.cli", "--listen", url, "--sysfs", str(node.sysfs)]
    command += ["--discovery", "static", "--sources", str(sources)]
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(EngineServer({"/metrics": Answer(body)}, remember=False)) for _ in range(8)]
        process = Process("mx-exporter", command, tmp_path / "log")
        stack.callback(process.kill)
        process.wait_ready(lambda: _answers(f"http://{url}/healthz"), 20)
        alone = latest(timestamps(f"http://{url}/metrics", TICKS))
        sources.write_text(yaml.safe_dump({"sources": [_source(i, server) for i, server in enumerate(servers)]}))
        page = ""
        while page.count("\nmx_kv_cache_usage{") < 8:
            time.sleep(0.2)
            page = urllib.request.urlopen(f"http://{url}/metrics", timeout=5).read().decode()
        beside = latest(timestamps(f"http://{url}/metrics", TICKS))
    sys.stderr.write(f"latest tick: {alone * 1000:.0f} ms late alone, {beside * 1000:.0f} ms late beside 8 engines\n")
    assert beside - max(alone, 0) < 0.1


def _source(number: int, server: EngineServer) -> dict[str, object]:
    pod = {"namespace": "n", "name": f"engine-{number}", "uid": f"u{number}", "ip": "127.0.0.1"}
    return {"pod": pod, "endpoints": [{"port": server.port}]}


def _answers(url: str) -> bool:
    with contextlib.suppress(OSError):
        return bool(urllib.request.urlopen(url, timeout=2).status == 200)
    return False
