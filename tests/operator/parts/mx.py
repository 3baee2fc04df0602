"""An MX server whose faults can be switched on: real gRPC, rows in a dictionary, time given by the test."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc

import mx_wire
from mx_operator.core.model import SourceKey

READY = mx_wire.SourceStatus.SOURCE_STATUS_READY
STALE = mx_wire.SourceStatus.SOURCE_STATUS_STALE


@dataclasses.dataclass
class Source:
    key: SourceKey
    rank: int = 0
    model: str = "m"
    endpoint: str = ""
    ready: bool = False
    load: float | None = None
    updated_at_ms: int = 0


@dataclasses.dataclass(frozen=True)
class Written:
    at: float
    key: SourceKey
    rank: int
    status: int
    load: float | None


class FakeMx(mx_wire.P2pServiceServicer):
    """The servicer; its fields are the switches."""

    def __init__(self) -> None:
        self.sources: dict[SourceKey, Source] = {}
        self.writes: list[Written] = []
        self.lists: list[float] = []
        self.metadata_calls: list[SourceKey] = []
        self.empty = False
        self.drops_load = False
        self.keeps_load = False
        self.list_delay = 0.0
        self.write_delay = 0.0
        self.fails: grpc.StatusCode | None = None
        self.write_fails: grpc.StatusCode | None = None
        self.refuses = False
        self.says = "no such worker"
        self.before_store: Callable[[Source], None] | None = None
        self.other_ranks: dict[SourceKey, int] = {}
        self.tokens: list[str | None] = []
        self.wall: Callable[[], float] = time.time
        #: The server's clock is put forward so that a source's heartbeats are so many seconds apart, however quickly
        #: a test sends them.
        self.heartbeat_every = 3.0
        self._ahead = 0.0
        self._beats: dict[SourceKey, int] = {}

    def add(self, n: int, rank: int = 0, model: str = "m", host: str | None = None) -> Source:
        """A source that is known and not READY yet."""
        key = SourceKey(f"{n:016x}", f"w{n}")
        self.sources[key] = Source(key, rank, model, f"{host or f'10.0.0.{n}'}:{6555 + rank}")
        return self.sources[key]

    def heartbeat(self, source: Source, load: float | None = None) -> None:
        """What the source itself sends."""
        early = self._beats.get(source.key, 0) + round(1000 * self.heartbeat_every) - self.stamp()
        self._ahead += max(0, early) / 1000
        source.ready, source.updated_at_ms = True, self.stamp()
        self._beats[source.key] = source.updated_at_ms
        if load is not None or not self.keeps_load:
            source.load = load

    def stamp(self) -> int:
        return round((self.wall() + self._ahead) * 1000)

    async def _fault(self, context: Any, code: grpc.StatusCode | None) -> None:
        if code is not None:
            await context.abort(code, self.says)

    async def ListSources(self, request: Any, context: Any) -> mx_wire.ListSourcesResponse:
        self.tokens.append(dict(context.invocation_metadata()).get("authorization"))
        await asyncio.sleep(self.list_delay)
        await self._fault(context, self.fails)
        answer = mx_wire.ListSourcesResponse()
        if not request.HasField("worker_rank_filter"):
            self.lists.append(time.monotonic())
        for source in self.sources.values():
            if self.empty or not source.ready:
                continue
            rank = source.rank
            if request.HasField("worker_rank_filter") and request.worker_rank_filter != rank:
                rank = self.other_ranks.get(source.key, -1)
                if rank != request.worker_rank_filter:
                    continue
            row = answer.instances.add(
                mx_source_id=source.key.mx_source_id,
                worker_id=source.key.worker_id,
                model_name=source.model,
                worker_rank=rank,
                updated_at=source.updated_at_ms,
            )
            if source.load is not None and not self.drops_load:
                row.source_load = source.load
        return answer

    async def PublishMetadata(self, request: Any, context: Any) -> mx_wire.PublishMetadataResponse:
        raise NotImplementedError("tests add their sources directly")

    async def GetMetadata(self, request: Any, context: Any) -> mx_wire.GetMetadataResponse:
        key = SourceKey(request.mx_source_id, request.worker_id)
        self.metadata_calls.append(key)
        source = self.sources.get(key)
        if source is None:
            return mx_wire.GetMetadataResponse(found=False)
        worker = mx_wire.WorkerMetadata(worker_rank=source.rank, worker_grpc_endpoint=source.endpoint)
        return mx_wire.GetMetadataResponse(found=True, worker=worker)

    async def UpdateStatus(self, request: Any, context: Any) -> mx_wire.UpdateStatusResponse:
        await self._fault(context, self.write_fails)
        key = SourceKey(request.mx_source_id, request.worker_id)
        load = request.source_load if request.HasField("source_load") else None
        self.writes.append(Written(time.monotonic(), key, request.worker_rank, request.status, load))
        await asyncio.sleep(self.write_delay)
        source = self.sources.get(key)
        if self.refuses or source is None or source.rank != request.worker_rank:
            return mx_wire.UpdateStatusResponse(success=False, message=self.says)
        if self.before_store is not None:
            self.before_store(source)
        source.ready, source.updated_at_ms = True, self.stamp()
        source.load = None if self.drops_load else load
        return mx_wire.UpdateStatusResponse(success=True)


@contextlib.asynccontextmanager
async def serving(fake: FakeMx, port: int = 0) -> AsyncIterator[str]:
    """Serve it; yields its address."""
    server = grpc.aio.server()
    mx_wire.add_p2p_service_to_server(fake, server)
    bound = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    try:
        yield f"127.0.0.1:{bound}"
    finally:
        await server.stop(grace=0)
