"""The P2pService: stubs for callers, the servicer for servers."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import grpc

from mx_wire._stubs import p2p_pb2
from mx_wire._stubs.p2p_pb2_grpc import P2pServiceServicer, P2pServiceStub, add_P2pServiceServicer_to_server

if TYPE_CHECKING:
    from mx_wire._stubs.p2p_pb2_grpc import P2pServiceAsyncStub as AsyncP2pServiceStub
else:  # The generated stub serves both kinds of channel; only its types come in two.
    AsyncP2pServiceStub = P2pServiceStub

__all__ = [
    "FILE_DESCRIPTOR",
    "SERVICE",
    "AsyncP2pServiceStub",
    "P2pServiceServicer",
    "P2pServiceStub",
    "add_p2p_service_to_server",
    "aio_stub",
]

#: The service's full name, as health checks and reflection ask for it.
SERVICE = "model_express.p2p.P2pService"

#: Descriptor of the proto file; its pool is private to this package.
FILE_DESCRIPTOR = p2p_pb2.DESCRIPTOR


def aio_stub(channel: grpc.aio.Channel) -> AsyncP2pServiceStub:
    """The service's stub on an asyncio channel, typed as such."""
    return cast("AsyncP2pServiceStub", P2pServiceStub(channel))


def add_p2p_service_to_server(servicer: P2pServiceServicer, server: grpc.Server | grpc.aio.Server) -> None:
    """Register `servicer` under `model_express.p2p.P2pService` on `server`."""
    add_P2pServiceServicer_to_server(servicer, server)
