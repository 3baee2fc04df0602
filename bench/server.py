"""The embedded server per backend: heartbeats a second, listings of 100 to 10,000 rows, memory.

    python -m bench.server [--backends memory redis kubernetes] [--sizes 100 1000 10000] [--seconds 4] [--json FILE]

One Python aio client in this process, 16 calls in flight, against `mx-server` in a process of its own on loopback;
Redis is Debian's, the API server the one that scripts/tools builds. The yardstick is the upstream server (Rust),
measured the same way on two shared cores; exit status 1 when ours misses its share of that: at most three times its
time on Redis, no slower on Kubernetes. Listings are timed one at a time, and again with 16 in flight (time for each).
The server's processor time for each update says more than the rate where other work shares the machine. So does, on
Kubernetes, `theirs/s`: in the same run, the upstream server's own requests for an update (read the object, then merge a
patch into its status) made straight to the API server, without any MX server between.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import json
import os
import pathlib
import random
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Final

from mx_lab.processes import Process
from mx_server.backends import kube_objects
from mx_server.cli import crd
from mx_server.kube_client import MERGE_PATCH, KubeClient
from mx_server.settings import Kubernetes
from mx_wire import (
    AsyncP2pServiceStub,
    ListSourcesRequest,
    PublishMetadataRequest,
    SourceIdentity,
    SourceStatus,
    UpdateStatusRequest,
    WorkerMetadata,
    aio_channel,
    aio_stub,
)
from tests.parts import kubernetes
from tests.parts.redis import redis_server

IN_FLIGHT: Final = 16
READY: Final = SourceStatus.SOURCE_STATUS_READY
MX_SERVER: Final = pathlib.Path(sys.executable).with_name("mx-server")


@dataclasses.dataclass(frozen=True)
class Yardstick:
    """The upstream server's figures, and how many times worse ours may be."""

    updates_per_second: float
    listing_ms: dict[int, float]
    times: float


UPSTREAM: Final = {
    "redis": Yardstick(3300, {1000: 23, 10000: 235}, 3),
    "kubernetes": Yardstick(150, {1000: 165}, 1),
}


@dataclasses.dataclass(frozen=True)
class Result:
    """One backend with so many sources."""

    backend: str
    sources: int
    updates_per_second: float
    update_p99_ms: float
    update_cpu_ms: float
    listing_ms: float
    listing_p99_ms: float
    listing_in_flight_ms: float
    memory_mb: float
    theirs_per_second: float | None = None

    def missed(self) -> list[str]:
        """What is worse than it may be."""
        yard = UPSTREAM.get(self.backend)
        if yard is None:
            return []
        missed = []
        if self.theirs_per_second is not None:
            if self.updates_per_second < self.theirs_per_second:
                missed.append(f"{self.updates_per_second:.0f} updates/s < theirs {self.theirs_per_second:.0f}")
        elif self.updates_per_second < yard.updates_per_second / yard.times:
            missed.append(f"{self.updates_per_second:.0f} updates/s < {yard.updates_per_second / yard.times:.0f}")
        if self.listing_ms > (bound := yard.listing_ms.get(self.sources, float("inf")) * yard.times):
            missed.append(f"listing {self.listing_ms:.0f} ms > {bound:.0f}")
        return missed


@contextlib.contextmanager
def store(backend: str, folder: pathlib.Path) -> Iterator[tuple[list[str], Kubernetes | None]]:
    """The store behind a backend; gives the server's arguments for it, and where the cluster is."""
    if backend == "redis":
        with redis_server(folder / "redis") as redis:
            yield ["--redis-url", redis.url], None
    elif backend == "kubernetes":
        with kubernetes.api_server(folder / "apiserver") as api:
            api.apply(crd())
            api.kubectl("wait", "--for=condition=Established", "--timeout=10s", "crd", "--all")
            token = folder / "token"
            token.write_text(kubernetes.ADMIN_TOKEN)
            place = ["--kube-api-server", api.url, "--kube-token-file", str(token), "--kube-ca-file", str(api.ca_file)]
            yield ["--namespace", "default", *place], Kubernetes("default", api.url, token, api.ca_file)
    else:
        yield [], None


@contextlib.contextmanager
def server(backend: str, arguments: Sequence[str], folder: pathlib.Path) -> Iterator[tuple[Process, str]]:
    """`mx-server` as its users start it, and its address."""
    quiet = ["--reaper-interval", "3600", "--heartbeat-timeout", "3600", "--log-level", "warning"]
    command = [str(MX_SERVER), "--listen", "127.0.0.1:0", "--backend", backend, *quiet, *arguments]
    with Process("mx-server", command, folder / f"mx-server-{backend}.log") as process:
        process.wait_ready(lambda: "listening on" in process.output)
        found = re.search(r"listening on (\S+)", process.output)
        assert found is not None
        yield process, found[1]


def memory_mb(process: Process) -> float:
    status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) / 1024


def cpu_seconds(process: Process) -> float:
    """What the server alone has used, without its store."""
    fields = pathlib.Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def in_flight(calls: Callable[[int], Awaitable[None]], count: int) -> None:
    """Make `count` calls, so many at a time."""
    numbers = iter(range(count))

    async def worker() -> None:
        for number in numbers:
            await calls(number)

    await asyncio.gather(*(worker() for _ in range(IN_FLIGHT)))


async def publish(stub: AsyncP2pServiceStub, first: int, count: int) -> str:
    """Register workers as READY, eight to a pod as a large model has them; their source id."""
    identity = SourceIdentity(model_name="org/a-model", tensor_parallel_size=8, dtype="bfloat16")
    found: list[str] = []

    async def one(number: int) -> None:
        number += first
        pod = number // 8
        worker = WorkerMetadata(
            worker_rank=number % 8,
            metadata_endpoint=f"10.0.{pod // 256}.{pod % 256}:{5555 + number % 8}",
            worker_grpc_endpoint=f"10.0.{pod // 256}.{pod % 256}:{6555 + number % 8}",
            agent_name=f"agent-{number:08x}",
            accelerator="cuda",
            status=READY,
        )
        request = PublishMetadataRequest(identity=identity, worker=worker, worker_id=f"{number:08x}")
        answer = await stub.PublishMetadata(request)
        assert answer.success, answer.message
        found.append(answer.mx_source_id)

    await in_flight(one, count)
    return found[0]


async def update(stub: AsyncP2pServiceStub, source_id: str, number: int, load: float) -> None:
    answer = await stub.UpdateStatus(
        UpdateStatusRequest(
            mx_source_id=source_id,
            worker_id=f"{number:08x}",
            worker_rank=number % 8,
            status=READY,
            source_load=load,
        )
    )
    assert answer.success, answer.message


async def updates(stub: AsyncP2pServiceStub, source_id: str, sources: int, seconds: float) -> tuple[float, float]:
    """Heartbeats of random workers for a while: how many a second, and their p99 in ms."""
    numbers, taken = random.Random(sources), list[float]()
    end = time.perf_counter() + seconds

    async def beating() -> None:
        while (started := time.perf_counter()) < end:
            await update(stub, source_id, numbers.randrange(sources), numbers.random())
            taken.append(time.perf_counter() - started)

    started = time.perf_counter()
    await asyncio.gather(*(beating() for _ in range(IN_FLIGHT)))
    return len(taken) / (time.perf_counter() - started), 1000 * statistics.quantiles(taken, n=100)[98]


async def theirs(place: Kubernetes, sources: int, seconds: float) -> float:
    """How many updates a second the upstream server's requests for one come to, made directly."""
    client, numbers, done = KubeClient(place, 30), random.Random(sources), 0
    path = f"/apis/{kube_objects.API_VERSION}/namespaces/{place.namespace}/modelmetadatas"
    names = [item["metadata"]["name"] for item in (await client.request("GET", path))["items"]]
    end = time.perf_counter() + seconds

    async def updating() -> None:
        nonlocal done
        while time.perf_counter() < end:
            name = numbers.choice(names)
            found = await client.request("GET", f"{path}/{name}")
            worker = {**found["status"]["worker"], "sourceLoad": numbers.random(), "updatedAt": now()}
            body = {"status": {"worker": worker, "conditions": found["status"]["conditions"]}}
            await client.request("PATCH", f"{path}/{name}/status", body, content=MERGE_PATCH)
            done += 1

    started = time.perf_counter()
    await asyncio.gather(*(updating() for _ in range(IN_FLIGHT)))
    rate = done / (time.perf_counter() - started)
    await client.close()
    return rate


def now() -> str:
    return kube_objects.timestamp(time.time_ns() // 1_000_000)


async def listings(stub: AsyncP2pServiceStub, sources: int, seconds: float) -> tuple[float, float, float]:
    """Listings one at a time (median and p99, ms), and the time for each with 16 in flight (ms)."""
    taken: list[float] = []

    async def listed(_: int = 0) -> None:
        started = time.perf_counter()
        answer = await stub.ListSources(ListSourcesRequest(status_filter=READY))
        taken.append(time.perf_counter() - started)
        assert len(answer.instances) == sources

    await listed()
    taken.clear()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(taken) < 5:
        await listed()
    alone = sorted(taken)
    count = max(IN_FLIGHT, min(400, round(seconds / statistics.median(alone))))
    started = time.perf_counter()
    await in_flight(listed, count)
    together = (time.perf_counter() - started) / count
    return 1000 * statistics.median(alone), 1000 * alone[int(0.99 * (len(alone) - 1))], 1000 * together


async def measured(
    backend: str,
    process: Process,
    address: str,
    place: Kubernetes | None,
    sizes: Sequence[int],
    seconds: float,
) -> list[Result]:
    results, published = [], 0
    async with aio_channel(address) as channel:
        stub = aio_stub(channel)
        for sources in sorted(sizes):
            source_id = await publish(stub, published, sources - published)
            published = sources
            before = cpu_seconds(process)
            rate, p99 = await updates(stub, source_id, sources, seconds)
            cpu = 1000 * (cpu_seconds(process) - before) / (rate * seconds)
            reference = None if place is None else await theirs(place, sources, seconds)
            alone, alone_p99, together = await listings(stub, sources, seconds)
            result = Result(backend, sources, rate, p99, cpu, alone, alone_p99, together, memory_mb(process), reference)
            print(line(result), flush=True)
            results.append(result)
    return results


HEADER: Final = (
    f"{'backend':>10} {'sources':>8} {'updates/s':>10} {'p99 ms':>7} {'cpu ms':>7}"
    f" {'theirs/s':>9} {'listing ms':>11} {'p99 ms':>7} {'16 at once':>11} {'MB':>5}"
)


def line(result: Result) -> str:
    reference = "" if result.theirs_per_second is None else f"{result.theirs_per_second:.0f}"
    return (
        f"{result.backend:>10} {result.sources:>8} {result.updates_per_second:>10.0f} {result.update_p99_ms:>7.1f}"
        f" {result.update_cpu_ms:>7.2f} {reference:>9} {result.listing_ms:>11.1f} {result.listing_p99_ms:>7.1f}"
        f" {result.listing_in_flight_ms:>11.1f} {result.memory_mb:>5.0f}"
        + "".join(f"  MISSED: {text}" for text in result.missed())
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--backends", nargs="+", default=["memory", "redis", "kubernetes"])
    parser.add_argument("--sizes", nargs="+", type=int, default=[100, 1000, 10000])
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--json", type=pathlib.Path)
    arguments = parser.parse_args()
    print(HEADER)
    results: list[Result] = []
    for backend in arguments.backends:
        if backend == "kubernetes" and (reason := kubernetes.missing()):
            print(f"{backend:>10} left out: {reason}")
            continue
        with contextlib.ExitStack() as stack:
            folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
            options, place = stack.enter_context(store(backend, folder))
            process, address = stack.enter_context(server(backend, options, folder))
            results += asyncio.run(measured(backend, process, address, place, arguments.sizes, arguments.seconds))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps([dataclasses.asdict(result) for result in results], indent=2) + "\n")
    return int(any(result.missed() for result in results))


if __name__ == "__main__":
    sys.exit(main())
