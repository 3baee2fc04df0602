"""The exporter against node_exporter's infiniband collector: same tree, same client, one run.

    .venv/bin/python -m bench.exporter [--rounds 300] [--cpu-seconds 20] [--json FILE]

Peers: node_exporter 1.12 (scripts/tools) and Debian's 1.5 (prometheus-node-exporter), each with only its infiniband
collector. A peer that is not there is named and left out; without 1.12 there is no verdict on the ratios. Counters move
five times a second. Then two nodes of our own: eight engines with pages of 5 MB, and Kubernetes discovery on a real API
server with a kubelet's socket. Exit status 1 when a target is missed.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import http.client
import http.server
import itertools
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
from tests.exporter.mapping.kubelets import Given, kubelet
from tests.exporter.trees import Node, nodes
from tests.parts import kubernetes
from tests.parts.tools import tool

PORTS = 16
PAGE_AGE = 1.1
HW_COUNTERS = (  # noqa: SIM905
    "duplicate_request implied_nak_seq_err lifespan local_ack_timeout_err np_cnp_sent np_ecn_marked_roce_packets "
    "out_of_buffer out_of_sequence packet_seq_err req_cqe_error req_cqe_flush_error req_remote_access_errors "
    "req_remote_invalid_request resp_cqe_error resp_cqe_flush_error resp_local_length_error resp_remote_access_errors "
    "rnr_nak_retry_err roce_adp_retrans roce_adp_retrans_to roce_slow_restart roce_slow_restart_cnps "
    "roce_slow_restart_trans rp_cnp_handled rp_cnp_ignored rx_atomic_requests rx_dct_connect rx_icrc_encapsulated "
    "rx_read_requests rx_write_requests"
).split()
COUNTERS = (  # noqa: SIM905
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
        chain = nodes.rail(i % 8)[:-1] + str(i // 8)
        node.function(chain, numa=i // 8)
        if i < 8:
            node.gpu(nodes.gpu_beside(i), f"GPU-{i:08d}-0000-0000-0000-000000000000", i)
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


def ours(node: Node, port: int, *more: str) -> list[str]:
    door = pathlib.Path(sys.executable).parent / "mx-exporter"
    return [str(door), "--listen", f"127.0.0.1:{port}", "--sysfs", str(node.sysfs), "--procfs", str(node.procfs), *more]


def commands(node: Node, port: int) -> Iterator[tuple[str, list[str]]]:
    """Every exporter that is there, by name, and how to start it."""
    yield "mx-exporter", ours(node, port)
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


@contextlib.contextmanager
def engines(folder: pathlib.Path, count: int = 8, megabytes: float = 5.0) -> Iterator[list[int]]:
    """Engines with large pages, in a process of their own; their ports."""
    ports = [free_port() for _ in range(count)]
    command = [sys.executable, "-m", "bench.exporter", "--engines", str(megabytes), *map(str, ports)]
    with Process("engines", command, folder / "engines.log", env={**os.environ, "PYTHONPATH": os.getcwd()}) as process:
        process.wait_ready(lambda: all(_listening(port) for port in ports))
        yield ports


def serve_engines(megabytes: float, ports: list[int]) -> None:
    """What the engines' process runs: the same page on every port, the gauge at its end."""
    line = 'vllm:request_latency_seconds_bucket{engine="0",le="%d",model_name="a-model-of-some-length"} %d\n'
    lines = [line % (i, i) for i in range(int(megabytes * 1e6 / 90))]
    body = "".join([*lines, 'vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.5\n']).encode()

    class Page(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    for port in ports:
        server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Page)
        threading.Thread(target=server.serve_forever, daemon=True).start()
    threading.Event().wait()


def delays(port: int, seconds: float) -> list[float]:
    """How late each tick began, in seconds, as the page tells it."""
    client, begun = Client(port), {}
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        page = client.scrape()
        stamp, took = (
            float(re.search(rb"(?m)^mx_exporter_sample_%s_seconds (\S+)" % name, page)[1])  # type: ignore[index]
            for name in (b"timestamp", b"duration")
        )
        begun[stamp] = stamp - took
        time.sleep(0.2)
    ticks = sorted(begun.values())
    return [later - earlier - 1.0 for earlier, later in itertools.pairwise(ticks)]


def with_engines(folder: pathlib.Path, node: Node, seconds: float) -> tuple[float, float, int]:
    """Eight engines with pages of 5 MB: (latest tick in seconds, memory in MB, engines read)."""
    with engines(folder) as ports:
        pods = [
            {
                "pod": {"namespace": "ai", "name": f"vllm-{i}", "uid": f"u{i}", "ip": "127.0.0.1"},
                "endpoints": [{"port": port}],
                "nics": [f"mlx5_{i}"],
            }
            for i, port in enumerate(ports)
        ]
        (folder / "sources.yaml").write_text(json.dumps({"sources": pods}))
        port = free_port()
        command = ours(node, port, "--discovery", "static", "--sources", str(folder / "sources.yaml"))
        with Process("mx-exporter", command, folder / "node.log") as process:
            process.wait_ready(lambda: _listening(port))
            wait_until(lambda: Client(port).scrape().count(b"\nmx_kv_cache_usage{") == len(ports), 30, "the engines")
            late = delays(port, seconds)
            return max(late), rss_mb(process.pid), len(ports)


def serve_kubelet(socket: pathlib.Path) -> None:
    """What the kubelet's process runs: one GPU for each of eight pods."""
    given = [Given("ai", f"vllm-{i}", ((f"GPU-{i:08d}-0000-0000-0000-000000000000",),)) for i in range(8)]
    with kubelet(socket, given):
        threading.Event().wait()


def with_kubernetes(folder: pathlib.Path, node: Node) -> float | None:
    """Memory in MB with Kubernetes discovery and the kubelet's socket; None where there is no API server."""
    if kubernetes.missing():
        print(f"Kubernetes: left out: {kubernetes.missing()}")
        return None
    command = [sys.executable, "-m", "bench.exporter", "--kubelet", str(folder / "kubelet.sock")]
    with (
        kubernetes.api_server(folder / "api") as api,
        Process("kubelet", command, folder / "kubelet.log", env={**os.environ, "PYTHONPATH": os.getcwd()}),
    ):
        token = folder / "token"
        token.write_text(kubernetes.ADMIN_TOKEN)
        api.service_account("ai", "mx-exporter")
        for i in range(8):
            container = {"name": "e", "image": "e", "ports": [{"containerPort": 8000}]}
            spec = {"nodeName": "n1", "containers": [{**container, "resources": {"limits": {"nvidia.com/gpu": "1"}}}]}
            path = "/api/v1/namespaces/ai/pods"
            api.request("POST", path, {"metadata": {"name": f"vllm-{i}"}, "spec": spec})
            status = {"status": {"phase": "Running", "podIP": f"192.0.2.{i + 1}"}}
            api.request("PATCH", f"{path}/vllm-{i}/status", status, content="application/merge-patch+json")
        settings = {"apiServer": api.url, "tokenFile": str(token), "caFile": str(api.ca_file)}
        (folder / "config.yaml").write_text(json.dumps({"kubernetes": settings}))
        port = free_port()
        more = ["--discovery", "kubernetes", "--node", "n1", "--pod-resources", str(folder / "kubelet.sock")]
        command = ours(node, port, *more, "--config", str(folder / "config.yaml"))
        with Process("mx-exporter", command, folder / "k8s.log") as process:
            process.wait_ready(lambda: _listening(port))
            mapped = b'nic_mapping="affinity"'
            wait_until(lambda: Client(port).scrape().count(mapped) == 8, 30, "eight mapped pods")
            for _ in range(30):
                Client(port).scrape()
                time.sleep(0.3)
            return rss_mb(process.pid)


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


def compare(folder: pathlib.Path, node: Node, rounds: int, cpu_for: float) -> list[Result]:
    """Every exporter that is there, one after another on the same tree."""
    results = []
    port = free_port()
    for name, command in commands(node, port):
        with Process(name, command, folder / "log") as process:
            process.wait_ready(lambda: _listening(port))
            results.append(measure(name, process, port, rounds, cpu_for))
    for result in results:
        age = "" if result.oldest_page_s is None else f"  oldest page {result.oldest_page_s:.2f} s"
        print(
            f"{result.name:27} p50 {result.p50_ms:6.2f} ms  p99 {result.p99_ms:6.2f} ms  "
            f"CPU {result.cpu_ms_per_second:5.1f} ms/s  RSS {result.rss_mb:5.1f} MB{age}"
        )
    return results


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--cpu-seconds", type=float, default=20)
    parser.add_argument("--engine-seconds", type=float, default=20)
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--engines", nargs="+", help=argparse.SUPPRESS)
    parser.add_argument("--kubelet", type=pathlib.Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.engines:
        serve_engines(float(arguments.engines[0]), [int(port) for port in arguments.engines[1:]])
    if arguments.kubelet:
        serve_kubelet(arguments.kubelet)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        node = make_node(folder / "node")
        with moving(node):
            results = compare(folder, node, arguments.rounds, arguments.cpu_seconds)
            late, with_pages, count = with_engines(folder, node, arguments.engine_seconds)
            in_cluster = with_kubernetes(folder, node)
    print(f"{count} engines with pages of 5 MB: latest tick {late * 1e3:.0f} ms late, RSS {with_pages:.1f} MB")
    missed = verdict(results)
    if late > 0.1:
        missed.append(f"a tick came {late * 1e3:.0f} ms late with {count} engines, more than 100 ms")
    if in_cluster is not None:
        print(f"Kubernetes discovery and the kubelet's socket: RSS {in_cluster:.1f} MB")
        if in_cluster > 60:
            missed.append(f"resident memory in a cluster {in_cluster:.1f} MB > 60 MB")
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
