"""The whole exporter as users run it: the process, this machine's own /sys, and real Prometheus servers."""

from __future__ import annotations

import contextlib
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator

import pytest

from mx_lab.processes import Process, free_port, wait_until
from tests.exporter.looking import values
from tests.exporter.trees import Node, nodes
from tests.parts import prometheus

DOOR = pathlib.Path(sys.executable).parent / "mx-exporter"


@contextlib.contextmanager
def exporting(tmp_path: pathlib.Path, *arguments: str) -> Iterator[tuple[Process, int]]:
    """A running exporter and its port."""
    port = free_port()
    command: list[str | pathlib.Path] = [DOOR, "--listen", f"127.0.0.1:{port}", *arguments]
    with Process("mx-exporter", command, tmp_path / "exporter.log") as process:
        process.wait_ready(lambda: b"ok" in _answer(port, "/readyz"))
        yield process, port


def _answer(port: int, path: str) -> bytes:
    with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=3) as answer:
        return bytes(answer.read())
    return b""


def page(port: int) -> str:
    return _answer(port, "/metrics").decode()


@contextlib.contextmanager
def carrying(node: Node, device: str, speed: float) -> Iterator[None]:
    """A port that transmits `speed` bytes a second, with some unrest."""
    done = threading.Event()
    file = node.file(device, "counters/port_xmit_data")

    def carry() -> None:
        begun = time.monotonic()
        while not done.wait(0.05):
            words = int((time.monotonic() - begun) * speed / 4)
            with file.open("r+") as counter:
                counter.write(f"{10**12 + words}\n")

    file.write_text(f"{10**12}\n")
    thread = threading.Thread(target=carry, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def test_this_machines_own_sys_makes_a_valid_page(tmp_path: pathlib.Path) -> None:
    with exporting(tmp_path, "--sysfs", "/sys") as (process, port):
        body = page(port)
        done = subprocess.run(["promtool", "check", "metrics"], input=body.encode(), capture_output=True, check=False)
        assert (done.returncode, done.stderr) == (0, b"")
        process.signal(signal.SIGTERM)
        assert process.wait(10) == 0
    devices = len(list(pathlib.Path("/sys/class/infiniband").glob("*")))
    assert (values(body, "mx_exporter_ports")[""] > 0) == (devices > 0)
    if not devices:
        assert "no RDMA device under /sys/class/infiniband" in process.output
    assert "Traceback" not in process.output


def test_once_prints_what_is_there_and_why(tmp_path: pathlib.Path) -> None:
    node = nodes.no_pma(tmp_path / "node")
    sources = tmp_path / "sources.yaml"
    sources.write_text(
        "sources: [{pod: {namespace: ai, name: vllm-0, uid: u0, ip: 127.0.0.1},"
        f" endpoints: [{{port: {free_port()}}}], nics: [mlx5_0]}}]"
    )
    done = subprocess.run(
        [DOOR, "--once", "--sysfs", node.sysfs, "--discovery", "static", "--sources", sources, "--window", "1"],
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(r"mlx5_0/1 +mlx5_core +InfiniBand +0000:22:00.0 +yes +400 Gb/s +0.0%  0.00 Gb/s", done.stdout)
    assert re.search(r"i40iw0/1 .*unknown: no_pma", done.stdout)
    assert re.search(r"ai/vllm-0 +all +mlx5_0/1 +explicit +0.0% +- +0.0% +kv: refused", done.stdout)


def test_two_prometheus_servers_and_a_person_read_the_same(tmp_path: pathlib.Path) -> None:
    """Scraping at different intervals, they see the same utilization wherever the sample's timestamp is the same."""
    program = prometheus.version_3() or prometheus.debian()
    if program is None:
        pytest.skip("no prometheus: run scripts/setup")
    node = nodes.eight_rails(tmp_path / "node")
    seen: dict[float, float] = {}
    with contextlib.ExitStack() as stack:
        stack.enter_context(carrying(node, "mlx5_0", 20e9))
        _, port = stack.enter_context(exporting(tmp_path, "--sysfs", str(node.sysfs)))
        servers = [
            stack.enter_context(
                prometheus.prometheus(
                    tmp_path / f"p{number}", {"e": [f"127.0.0.1:{port}"]}, binary=binary, interval=interval
                )
            )
            for number, (binary, interval) in enumerate(((program, "1s"), (prometheus.debian() or program, "700ms")))
        ]
        for server in servers:
            server.wait_for("mx_exporter_sample_timestamp_seconds")
        deadline = time.monotonic() + 8
        while time.monotonic() < deadline:
            stamp, value = _pair(page(port))
            assert seen.setdefault(stamp, value) == value
            time.sleep(0.13)
        stored = [_stored(server) for server in servers]
    assert len(set(seen.values())) > 3  # the load is unrestful enough for this to mean something
    for one in stored:
        assert len(one.keys() & seen.keys()) >= 4
        assert {stamp: one[stamp] for stamp in one.keys() & seen.keys()} == {
            stamp: seen[stamp] for stamp in one.keys() & seen.keys()
        }
    common = stored[0].keys() & stored[1].keys()
    assert len(common) >= 4
    assert all(stored[0][stamp] == stored[1][stamp] for stamp in common)


def _pair(text: str) -> tuple[float, float]:
    (stamp,) = values(text, "mx_exporter_sample_timestamp_seconds").values()
    found = values(text, "hw_network_bandwidth_utilization")
    label = 'device="mlx5_0",hw_id="mlx5_0/1",network_io_direction="transmit",port="1"'
    return stamp, found.get(label, -1.0)


def _stored(server: prometheus.Prometheus) -> dict[float, float]:
    """Sample timestamp -> utilization of what a server scraped: both carry the scrape's own time."""
    stamps = _samples(server, "mx_exporter_sample_timestamp_seconds")
    shares = _samples(server, 'hw_network_bandwidth_utilization{device="mlx5_0",network_io_direction="transmit"}')
    return {stamp: shares[at] for at, stamp in stamps.items() if at in shares}


def _samples(server: prometheus.Prometheus, selector: str) -> dict[float, float]:
    (found,) = server.api("query", query=f"{selector}[2m]")["result"]
    return {float(at): float(value) for at, value in found["values"]}


def test_a_second_exporter_on_the_port_says_so_and_ends(tmp_path: pathlib.Path) -> None:
    with exporting(tmp_path, "--sysfs", str(nodes.nothing(tmp_path / "node").sysfs)) as (_, port):
        done = subprocess.run(
            [DOOR, "--listen", f"127.0.0.1:{port}"], capture_output=True, text=True, check=False, timeout=20
        )
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith(f"mx-exporter: --listen 127.0.0.1:{port}: ")


def test_a_tree_that_appears_later_is_found(tmp_path: pathlib.Path) -> None:
    node = nodes.nothing(tmp_path / "node")
    with exporting(tmp_path, "--sysfs", str(node.sysfs), "--interval", "0.2", "--window", "0.5") as (_, port):
        made = nodes.vf_pod(tmp_path / "other")
        shutil.copytree(made.sysfs, node.sysfs, symlinks=True, dirs_exist_ok=True)
        wait_until(lambda: 'reason="no_counters_netns"' in page(port), 10, "the device")


def test_a_process_that_pushes_needs_no_scrape(tmp_path: pathlib.Path) -> None:
    program = prometheus.version_3()
    if program is None:
        pytest.skip("no Prometheus 3: run scripts/tools")
    node = nodes.eight_rails(tmp_path / "node")
    config = tmp_path / "config.yaml"
    config.write_text("otlp: {interval: 0.5}\ncluster: c1\nnode: n1\n")
    receiving = prometheus.prometheus(tmp_path / "p", binary=program, arguments=["--web.enable-otlp-receiver"])
    with receiving as server:
        push = ["--otlp-endpoint", f"{server.url}/api/v1/otlp", "--otlp-protocol", "http/protobuf"]
        with exporting(tmp_path, "--sysfs", str(node.sysfs), "--config", str(config), *push):
            found = server.wait_for("hw_network_bandwidth_utilization", count=18)
    assert {labels["instance"] for labels, _ in found} == {"n1"}
    assert {labels["job"] for labels, _ in found} == {"mx-exporter"}


def test_a_collector_that_is_away_delays_neither_scrapes_nor_the_end(tmp_path: pathlib.Path) -> None:
    node = nodes.eight_rails(tmp_path / "node")
    config = tmp_path / "config.yaml"
    config.write_text("otlp: {interval: 0.5, timeout: 1}\n")
    push = ["--otlp-endpoint", f"http://127.0.0.1:{free_port()}", "--config", str(config)]
    with exporting(tmp_path, "--sysfs", str(node.sysfs), *push) as (process, port):
        begun = time.monotonic()
        for _ in range(10):
            assert "hw_network_up" in page(port)
            time.sleep(0.1)
        assert time.monotonic() - begun < 5
        process.signal(signal.SIGTERM)
        assert process.wait(10) == 0
