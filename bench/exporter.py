"""The exporter against node_exporter's infiniband collector: same tree, same client, one run.

    .venv/bin/python bench/exporter.py [--rounds 300] [--cpu-seconds 20] [--json FILE]

Peers: node_exporter 1.12 (scripts/tools) and Debian's 1.5 (prometheus-node-exporter), each with only its infiniband
collector. A peer that is not there is named and left out; without 1.12 there is no verdict on the ratios. Counters move
five times a second. Exit status 1 when a target is missed.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import http.client
import json
import os
import pathlib
import re
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator

from mx_lab.processes import Process, free_port, wait_until
from tests.exporter.trees import Node, nodes
from tests.parts.tools import tool

PORTS = 16
PAGE_AGE = 1.1
HW_COUNTERS = (
    "duplicate_request implied_nak_seq_err lifespan local_ack_timeout_err np_cnp_sent np_ecn_marked_roce_packets "
    "out_of_buffer out_of_sequence packet_seq_err req_cqe_error req_cqe_flush_error req_remote_access_errors "
    "req_remote_invalid_request resp_cqe_error resp_cqe_flush_error resp_local_length_error resp_remote_access_errors "
    "rnr_nak_retry_err roce_adp_retrans roce_adp_retrans_to roce_slow_restart roce_slow_restart_cnps "
    "roce_slow_restart_trans rp_cnp_handled rp_cnp_ignored rx_atomic_requests rx_dct_connect rx_icrc_encapsulated "
    "rx_read_requests rx_write_requests"
).split()
COUNTERS = (
    "VL15_dropped excessive_buffer_overrun_errors link_downed link_error_recovery local_link_integrity_errors "
    "multicast_rcv_packets multicast_xmit_packets port_rcv_constraint_errors port_rcv_data port_rcv_errors "
    "port_rcv_packets port_rcv_remote_physical_errors port_rcv_switch_relay_errors port_xmit_constraint_errors "
    "port_xmit_data port_xmit_discards port_xmit_packets port_xmit_wait symbol_error unicast_rcv_packets "
    "unicast_xmit_packets"
).split()


@dataclasses.dataclass
class Result:
    """What was measured of one exporter."""

    name: str
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    cpu_ms_per_second: float = 0.0
    rss_mb: float = 0.0
    bytes: int = 0
    oldest_page_s: float | None = None


def make_node(root: pathlib.Path) -> Node:
    node = Node(root)
    for i in range(PORTS):
        node.function(nodes.rail(i % 8) + ("" if i < 8 else "1"), numa=i // 8)
        chain = nodes.rail(i % 8) + ("" if i < 8 else "1")
        node.device(f"mlx5_{i}", chain)
        node.port(
            f"mlx5_{i}",
            counters=dict.fromkeys(COUNTERS, "1000"),
            hw_counters=dict.fromkeys(HW_COUNTERS, "12"),
        )
    return node


@contextlib.contextmanager
def moving(node: Node) -> Iterator[None]:
    """Counters that move: half the link's rate on every port, five times a second."""
    files = [
        node.file(f"mlx5_{i}", f"counters/{name}") for i in range(PORTS) for name in ("port_xmit_data", "port_rcv_data")
    ]
    done = threading.Event()

    def move() -> None:
        begun = time.monotonic()
        while not done.wait(0.2):
            text = b"%d\n" % int(1000 + (time.monotonic() - begun) * 6.25e9)
            for file in files:
                descriptor = os.open(file, os.O_WRONLY)
                os.pwrite(descriptor, text, 0)  # never shorter than before: no reader sees half a number
                os.close(descriptor)

    thread = threading.Thread(target=move, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


class Client:
    """A keep-alive client, the same for all."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)

    def scrape(self) -> bytes:
        self._connection.request("GET", "/metrics", headers={"Accept": "text/plain;version=0.0.4"})
        answer = self._connection.getresponse()
        body = answer.read()
        assert answer.status == 200, answer.status
        return body


def cpu_seconds(pid: int) -> float:
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rss_mb(pid: int) -> float:
    match = re.search(r"VmRSS:\s+(\d+) kB", pathlib.Path(f"/proc/{pid}/status").read_text())
    assert match
    return int(match[1]) / 1024


def measure(name: str, process: Process, port: int, rounds: int, cpu_for: float) -> Result:
    client = Client(port)
    result = Result(name)
    wait_until(lambda: b"infiniband" in client.scrape() or b'device="mlx5_0"' in client.scrape(), 10, name)
    times: list[float] = []
    ages: list[float] = []
    for _ in range(rounds):
        begun = time.perf_counter()
        body = client.scrape()
        times.append((time.perf_counter() - begun) * 1e3)
        if stamp := re.search(rb"(?m)^mx_exporter_sample_timestamp_seconds (\S+)", body):
            ages.append(time.time() - float(stamp[1]))
        time.sleep(0.01)  # spread over several ticks
    cut = statistics.quantiles(times, n=100)
    result.p50_ms, result.p99_ms, result.bytes = cut[49], cut[98], len(body)
    before, begun = cpu_seconds(process.pid), time.monotonic()
    for i in range(int(cpu_for)):
        time.sleep(max(0.0, begun + i + 1 - time.monotonic()))
        body = client.scrape()
        if stamp := re.search(rb"(?m)^mx_exporter_sample_timestamp_seconds (\S+)", body):
            ages.append(time.time() - float(stamp[1]))
    result.cpu_ms_per_second = (cpu_seconds(process.pid) - before) / (time.monotonic() - begun) * 1e3
    result.rss_mb = rss_mb(process.pid)
    result.oldest_page_s = max(ages) if ages else None
    return result


def commands(node: Node, port: int) -> Iterator[tuple[str, list[str]]]:
    """Every exporter that is there, by name, and how to start it."""
    yield (
        "mx-exporter",
        [
            f"{pathlib.Path(sys.executable).parent}/mx-exporter",
            "--listen",
            f"127.0.0.1:{port}",
            "--sysfs",
            str(node.sysfs),
        ],
    )
    peers = {
        "node_exporter 1.12": tool("node_exporter"),
        "node_exporter 1.5 (Debian)": shutil.which("prometheus-node-exporter"),
    }
    for name, program in peers.items():
        if program is None:
            print(f"{name}: not here (scripts/tools, or apt-get install prometheus-node-exporter)")
            continue
        yield (
            name,
            [
                str(program),
                f"--path.sysfs={node.sysfs}",
                "--collector.disable-defaults",
                "--collector.infiniband",
                "--web.disable-exporter-metrics",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
        )


def verdict(results: list[Result]) -> list[str]:
    """The targets that were missed."""
    by_name = {result.name: result for result in results}
    ours, theirs = by_name["mx-exporter"], by_name.get("node_exporter 1.12")
    missed = []
    if ours.rss_mb > 60:
        missed.append(f"resident memory {ours.rss_mb:.0f} MB > 60 MB")
    if ours.oldest_page_s is None or ours.oldest_page_s > PAGE_AGE:
        missed.append(f"oldest page {ours.oldest_page_s} s > {PAGE_AGE} s")
    if theirs is not None:
        for quantile in ("p50_ms", "p99_ms"):
            ratio = getattr(ours, quantile) / getattr(theirs, quantile)
            if ratio > 1 / 3:
                missed.append(f"{quantile[:3]} is {ratio:.2f} of 1.12's, more than a third")
        if ours.cpu_ms_per_second > theirs.cpu_ms_per_second:
            missed.append(f"CPU {ours.cpu_ms_per_second:.1f} ms/s > 1.12's {theirs.cpu_ms_per_second:.1f} ms/s")
    return missed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--cpu-seconds", type=float, default=20)
    parser.add_argument("--json", type=pathlib.Path)
    arguments = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory() as folder:
        node = make_node(pathlib.Path(folder) / "node")
        with moving(node):
            port = free_port()
            for name, command in commands(node, port):
                with Process(name, command, pathlib.Path(folder) / "log") as process:
                    process.wait_ready(lambda port=port: bool(Client(port).scrape()) if _listening(port) else False)
                    results.append(measure(name, process, port, arguments.rounds, arguments.cpu_seconds))
    for result in results:
        age = "" if result.oldest_page_s is None else f"  oldest page {result.oldest_page_s:.2f} s"
        print(
            f"{result.name:28} p50 {result.p50_ms:6.2f} ms  p99 {result.p99_ms:6.2f} ms  CPU {result.cpu_ms_per_second:5.1f} ms/s"
            f"  RSS {result.rss_mb:5.1f} MB  page {result.bytes / 1e3:.0f} kB{age}"
        )
    missed = verdict(results)
    for line in missed:
        print("MISSED:", line)
    if arguments.json:
        arguments.json.write_text(json.dumps([dataclasses.asdict(result) for result in results], indent=1))
    return 1 if missed else 0


def _listening(port: int) -> bool:
    with contextlib.suppress(OSError):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1)
        connection.connect()
        connection.close()
        return True
    return False


if __name__ == "__main__":
    sys.exit(main())
