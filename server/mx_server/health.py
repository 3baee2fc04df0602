"""`grpc.health.v1`: SERVING from the start to the stop, and no watch that outlives it. Made by `app`.

grpcio's own servicer keeps a watch open until the client goes, so that one watch would make every stop last the whole
grace. This server's status changes once, which needs no more than an event.
"""

from __future__ import annotations

import asyncio
from typing import TypeAlias

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

_Context: TypeAlias = "grpc.aio.ServicerContext[health_pb2.HealthCheckRequest, health_pb2.HealthCheckResponse]"
_Answer = health_pb2.HealthCheckResponse


class Health(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # grpc_health has no types
    """Health of the named services: all of them serve, until `stop`."""

    def __init__(self, *services: str) -> None:
        self._services = frozenset(services)
        self._stopping = asyncio.Event()

    async def Check(  # noqa: N802 - gRPC's name
        self, request: health_pb2.HealthCheckRequest, context: _Context
    ) -> health_pb2.HealthCheckResponse:
        """The status of a service; NOT_FOUND for one that is not here."""
        if request.service not in self._services:
            await context.abort(grpc.StatusCode.NOT_FOUND)
        return self._now(request.service)

    async def Watch(  # noqa: N802
        self, request: health_pb2.HealthCheckRequest, context: _Context
    ) -> None:
        """The status of a service now, its change when the server stops, and then the end."""
        now = self._now(request.service)
        await context.write(now)
        await self._stopping.wait()
        if (then := self._now(request.service)) != now:
            await context.write(then)
        await context.abort(grpc.StatusCode.UNAVAILABLE, "the server stops")

    async def stop(self) -> None:
        """Say NOT_SERVING from here on, and end every watch."""
        self._stopping.set()

    def _now(self, service: str) -> health_pb2.HealthCheckResponse:
        if service not in self._services:
            return _Answer(status=_Answer.SERVICE_UNKNOWN)
        return _Answer(status=_Answer.NOT_SERVING if self._stopping.is_set() else _Answer.SERVING)
