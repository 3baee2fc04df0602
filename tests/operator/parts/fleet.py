"""A small fleet for whole-process tests: a page of loads for Prometheus, and sources that send heartbeats."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc

import mx_wire
from mx_operator.core.marks import mark, nonce_of
from tests.operator.parts.pages import serving_pages

READY = mx_wire.SourceStatus.SOURCE_STATUS_READY


class Loads:
    """What is true, since when; served as our exporter serves it."""

    def __init__(self, count: int) -> None:
        self.now = [0.5] * count
        self.history: list[list[tuple[float, float]]] = [[(0.0, 0.5)] for _ in range(count)]

    def turn(self, n: int, load: float) -> None:
        self.now[n] = load
        self.history[n].append((time.monotonic(), load))

    def lately(self, n: int, since: float) -> set[float]:
        """Every value that was true at some time after `since`, as an operator would write it, nonce zero."""
        history = self.history[n]
        ends = [start for start, _ in history[1:]] + [float("inf")]
        return {mark(load, 0) for (_, load), end in zip(history, ends, strict=True) if end >= since}

    def page(self) -> str:
        return "".join(f'mx_source_load{{k8s_pod_ip="10.0.0.{n}",gpu=""}} {load}\n' for n, load in enumerate(self.now))


def serving_page(loads: Loads) -> contextlib.AbstractContextManager[int]:
    """Serve the page as an exporter does; gives its port."""
    return serving_pages({"/metrics": loads.page})


class Forwarder(mx_wire.P2pServiceServicer):
    """Stands before a real server and keeps every load that is written through it."""

    def __init__(self, stub: Any) -> None:
        self._stub = stub
        self.written: list[tuple[float, str, int, float | None]] = []

    async def _forward(self, method: str, request: Any, context: Any) -> Any:
        try:
            return await getattr(self._stub, method)(request, timeout=5)
        except grpc.aio.AioRpcError as error:
            await context.abort(error.code(), error.details() or "")

    async def ListSources(self, request: Any, context: Any) -> Any:
        return await self._forward("ListSources", request, context)

    async def GetMetadata(self, request: Any, context: Any) -> Any:
        return await self._forward("GetMetadata", request, context)

    async def PublishMetadata(self, request: Any, context: Any) -> Any:
        return await self._forward("PublishMetadata", request, context)

    async def UpdateStatus(self, request: Any, context: Any) -> Any:
        load = request.source_load if request.HasField("source_load") else None
        self.written.append((time.monotonic(), request.worker_id, request.status, load))
        return await self._forward("UpdateStatus", request, context)


@contextlib.asynccontextmanager
async def forwarding(stub: Any) -> AsyncIterator[tuple[Forwarder, str]]:
    """Run a forwarder; yields it and its address."""
    forwarder, server = Forwarder(stub), grpc.aio.server()
    mx_wire.add_p2p_service_to_server(forwarder, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield forwarder, f"127.0.0.1:{port}"
    finally:
        await server.stop(grace=0)


class Sources:
    """Sources on one server; their heartbeats go on while the server is away."""

    def __init__(self, stub: Any, count: int, heartbeat: float) -> None:
        self._stub, self._count, self._heartbeat = stub, count, heartbeat
        self._ids: list[tuple[str, str]] = []

    async def publish(self) -> None:
        for n in range(self._count):
            request = mx_wire.PublishMetadataRequest(
                identity=mx_wire.SourceIdentity(model_name="m", mx_version="1"),
                worker=mx_wire.WorkerMetadata(worker_rank=0, worker_grpc_endpoint=f"10.0.0.{n}:6555"),
                worker_id=f"worker{n}",
            )
            answer = await self._stub.PublishMetadata(request)
            self._ids.append((answer.mx_source_id, answer.worker_id))

    async def live(self) -> None:
        """Send heartbeats until cancelled."""
        await asyncio.gather(*(self._live(n) for n in range(self._count)))

    async def _live(self, n: int) -> None:
        await asyncio.sleep(self._heartbeat * n / self._count)
        source, worker = self._ids[n]
        request = mx_wire.UpdateStatusRequest(mx_source_id=source, worker_id=worker, worker_rank=0, status=READY)
        while True:
            with contextlib.suppress(grpc.aio.AioRpcError):
                await self._stub.UpdateStatus(request, timeout=2)
            await asyncio.sleep(self._heartbeat)

    async def stored(self) -> dict[str, float | None]:
        """The loads a server has, by worker; nonces set to zero."""
        try:
            answer = await self._stub.ListSources(mx_wire.ListSourcesRequest(status_filter=READY), timeout=5)
        except grpc.aio.AioRpcError:
            return {}
        return {row.worker_id: _plain(mx_wire.read_load(row)) for row in answer.instances}


def _plain(load: float | None) -> float | None:
    return load if nonce_of(load) is None or load is None else mark(load, 0)
