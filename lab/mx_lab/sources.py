"""The sources' side of MX: publish, then heartbeat, as an unmodified worker does that knows no load of its own."""

from __future__ import annotations

import asyncio
import logging
import random
from typing import Final

import grpc

import mx_wire
from mx_lab.fleet import MODEL, WORKER_PORT, Fleet, LabSource

_log = logging.getLogger(__name__)

ACCELERATOR: Final = "cuda"
IDENTITY: Final = mx_wire.SourceIdentity(
    mx_version="0.7.0",
    model_name=MODEL,
    backend_framework=mx_wire.BackendFramework.BACKEND_FRAMEWORK_VLLM,
    tensor_parallel_size=1,
    pipeline_parallel_size=1,
    dtype="bfloat16",
)


def publication(source: LabSource) -> mx_wire.PublishMetadataRequest:
    """What a source announces of itself."""
    worker = mx_wire.WorkerMetadata(
        worker_rank=0,
        nixl_metadata=source.worker_id.encode(),
        agent_name=source.name,
        metadata_endpoint=f"{source.ip}:5555",
        worker_grpc_endpoint=f"{source.ip}:{WORKER_PORT}",
        accelerator=ACCELERATOR,
    )
    return mx_wire.PublishMetadataRequest(
        identity=IDENTITY,
        worker=worker,
        worker_id=source.worker_id,
        pod_name=source.name,
        pod_uid=pod_uid(source),
        pod_namespace="lab",
    )


def pod_uid(source: LabSource) -> str:
    """The uid of a source's pod."""
    return f"uid-{source.name}"


class Sources:
    """All sources, heartbeating in turn until stopped."""

    def __init__(self, fleet: Fleet, channel: grpc.aio.Channel, heartbeat: float, seed: int) -> None:
        self._fleet, self._stub, self._heartbeat = fleet, mx_wire.aio_stub(channel), heartbeat
        self._random = random.Random(seed)
        self.heartbeats = 0

    async def run(self) -> None:
        """Publish all, then heartbeat for ever; spread evenly over the interval, as pods that started apart are."""
        step = self._heartbeat / len(list(self._fleet))
        async with asyncio.TaskGroup() as group:
            for number, source in enumerate(self._fleet):
                group.create_task(self._live(source, number * step))

    async def _live(self, source: LabSource, offset: float) -> None:
        await self._stub.PublishMetadata(publication(source), timeout=5)
        status = mx_wire.UpdateStatusRequest(
            mx_source_id=mx_wire.mx_source_id(IDENTITY),
            worker_id=source.worker_id,
            worker_rank=0,
            status=mx_wire.SourceStatus.SOURCE_STATUS_READY,
        )
        await self._beat(status)
        await asyncio.sleep(offset)
        while True:
            await self._beat(status)
            await asyncio.sleep(self._heartbeat * self._random.uniform(0.99, 1.01))

    async def _beat(self, status: mx_wire.UpdateStatusRequest) -> None:
        try:
            answer = await self._stub.UpdateStatus(status, timeout=5)
            self.heartbeats += answer.success
        except grpc.aio.AioRpcError as error:
            _log.warning("heartbeat of %s: %s", status.worker_id, error.details())
