"""A real gRPC server that only lists: the rows it was given, whatever it is asked."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from concurrent import futures
from typing import Any

import grpc

from mx_wire import (
    ListSourcesRequest,
    ListSourcesResponse,
    P2pServiceServicer,
    SourceInstanceRef,
    add_p2p_service_to_server,
)


class Servicer(P2pServiceServicer):
    """Answers ListSources, and remembers what it was asked."""

    def __init__(self, instances: Sequence[SourceInstanceRef]) -> None:
        self.instances, self.requests = instances, list[ListSourcesRequest]()

    def ListSources(self, request: ListSourcesRequest, context: Any) -> ListSourcesResponse:
        self.requests.append(request)
        return ListSourcesResponse(instances=self.instances)

    def PublishMetadata(self, request: Any, context: Any) -> Any:
        raise NotImplementedError

    GetMetadata = UpdateStatus = PublishMetadata


@contextlib.contextmanager
def serving(instances: Sequence[SourceInstanceRef]) -> Iterator[tuple[Servicer, str]]:
    """The servicer and its address."""
    servicer, server = Servicer(instances), grpc.server(futures.ThreadPoolExecutor(2))
    add_p2p_service_to_server(servicer, server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    yield servicer, address
    server.stop(None).wait()
