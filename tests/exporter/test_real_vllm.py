"""The exporter beside a real vLLM whose small cache fills and empties: the number follows it, or is unknown."""

from __future__ import annotations

import contextlib
import pathlib
import re
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator

import pytest
import yaml

from mx_lab.processes import Process, free_port
from tests.exporter.trees import nodes
from tests.parts import vllm

pytestmark = [pytest.mark.real_vllm, pytest.mark.timeout(400)]


class Exporter:
    """The exporter's process and what its page says of one pod."""

    def __init__(self, address: str) -> None:
        self.address = address

    def page(self) -> str:
        with (
            contextlib.suppress(OSError),
            urllib.request.urlopen(f"http://{self.address}/metrics", timeout=5) as answer,
        ):
            return str(answer.read().decode())
        return ""

    def usage(self) -> float | None:
        found = re.findall(r'\nmx_kv_cache_usage\{engine="vllm",engine_index="0",[^}]*\} (\S+)', self.page())
        return float(found[0]) if found else None

    def load(self) -> float | None:
        found = re.findall(r"\nmx_source_load\{[^}]*\} (\S+)", self.page())
        return float(found[0]) if found else None

    def reason(self) -> str | None:
        found = re.findall(r'\nmx_exporter_unknown\{[^}]*part="kv",reason="(\w+)"', self.page())
        return found[0] if found else None


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def exporter(port: int, tmp_path: pathlib.Path) -> Iterator[Exporter]:
    pod = {"namespace": "n", "name": "tiny-0", "uid": "u", "ip": "127.0.0.1"}
    sources = tmp_path / "sources.yaml"
    sources.write_text(yaml.safe_dump({"sources": [{"pod": pod, "endpoints": [{"port": port}], "nics": ["mlx5_0"]}]}))
    address = f"127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "mx_exporter.cli", "--listen", address, "--discovery", "static"]
    command += ["--sources", str(sources), "--sysfs", str(nodes.eight_rails(tmp_path / "node").sysfs)]
    process = Process("mx-exporter", command, tmp_path / "log")
    exporter = Exporter(address)
    process.wait_ready(lambda: "mx_exporter_sources 1" in exporter.page(), 30)
    yield exporter
    process.kill()


def wait(condition: Callable[[], object], seconds: float) -> float:
    """Wait until it holds; how long that took."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < seconds, "did not come true"
        time.sleep(0.1)
    return time.monotonic() - began


def test_the_number_follows_the_cache(exporter: Exporter, port: int, tmp_path: pathlib.Path) -> None:
    with vllm.real_vllm(tmp_path / "vllm", port=port, wait=False) as engine:
        seen = set()
        while not engine.ready():
            if exporter.usage() is not None:
                assert engine.ready()
                break
            seen.add(exporter.reason())
            time.sleep(0.5)
        assert seen - {"pending"} == {"refused"}
        # At most ten seconds until it is asked again, and a tick.
        found = wait(lambda: exporter.usage() is not None, 15)
        assert exporter.usage() == 0
        with engine.load(16, seconds=40) as load:
            wait(lambda: engine.kv_usage() > 0.3, 30)
            pairs = _pairs(exporter, engine, 15)
            assert load.failed == 0
        followed = [any(abs(ours - theirs) < 0.02 for theirs in recent) for ours, recent in pairs]
        high = max(ours for ours, _ in pairs)
        emptied = wait(lambda: exporter.usage() == 0, 10)
        engine.process.kill()
        lost = wait(lambda: exporter.usage() is None, 10)
        wait(lambda: exporter.reason() == "refused", 15)
    sys.stderr.write(
        f"real vLLM: seen {found:.1f} s after it was ready, at most {high:.3f}, {sum(followed)} of {len(followed)} "
        f"readings were the engine's own, 0 again after {emptied:.1f} s, unknown {lost:.1f} s after it was killed\n"
    )
    assert high > 0.3
    assert sum(followed) >= 0.8 * len(followed)


def _pairs(exporter: Exporter, engine: vllm.RealVllm, seconds: float) -> list[tuple[float, list[float]]]:
    """What the exporter says, each with what the engine said in the four seconds before."""
    said: list[tuple[float, float]] = []
    pairs = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        now = time.monotonic()
        said = [(when, value) for when, value in said if now - when < 4.5] + [(now, engine.kv_usage())]
        ours, load = exporter.usage(), exporter.load()
        if ours is not None and now > end - seconds + 4.5:
            assert load is None or load >= 0
            pairs.append((ours, [value for _, value in said]))
        time.sleep(0.03)
    return pairs
