"""A real gRPC server that only lists: the rows it was given, of the identity asked for or of any."""

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
    mx_source_id,
)


class Servicer(P2pServiceServicer):
    """Answers ListSources, and remembers what it was asked."""

    def __init__(self, instances: Sequence[SourceInstanceRef], by_identity: bool) -> None:
        self.instances, self.by_identity = instances, by_identity
        self.requests: list[ListSourcesRequest] = []

    def ListSources(self, request: ListSourcesRequest, context: Any) -> ListSourcesResponse:
        self.requests.append(request)
        rows = self.instances
        if self.by_identity and request.HasField("identity"):
            rows = [row for row in rows if row.mx_source_id == mx_source_id(request.identity)]
        return ListSourcesResponse(instances=rows)

    def PublishMetadata(self, request: Any, context: Any) -> Any:
        raise NotImplementedError

    GetMetadata = UpdateStatus = PublishMetadata


@contextlib.contextmanager
def serving(instances: Sequence[SourceInstanceRef], *, by_identity: bool = False) -> Iterator[tuple[Servicer, str]]:
    """The servicer and its address."""
    servicer, server = Servicer(instances, by_identity), grpc.server(futures.ThreadPoolExecutor(2))
    add_p2p_service_to_server(servicer, server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    yield servicer, address
    server.stop(None).wait()
