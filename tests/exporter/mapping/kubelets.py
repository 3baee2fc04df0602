"""A kubelet's pod-resources socket: a real gRPC server that answers List as a test says. The fake of the seam."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import pathlib
from collections.abc import Iterable, Iterator

import grpc


@dataclasses.dataclass(frozen=True)
class Given:
    """A pod and the devices of each of its containers: plugins' identifiers, and (driver, device) claims."""

    namespace: str
    name: str
    containers: tuple[tuple[str, ...], ...] = ()
    claims: tuple[tuple[str, str], ...] = ()


def field(number: int, content: bytes | str) -> bytes:
    """A length-delimited protobuf field."""
    raw = content.encode() if isinstance(content, str) else content
    return varint(number << 3 | 2) + varint(len(raw)) + raw


def varint(value: int) -> bytes:
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def response(pods: Iterable[Given]) -> bytes:
    """A ListPodResourcesResponse, with the fields we do not read in it, too."""
    return b"".join(field(1, _pod(pod)) for pod in pods)


def _pod(pod: Given) -> bytes:
    containers = [_container(devices) for devices in pod.containers]
    if pod.claims:
        resources = b"".join(
            field(4, field(1, field(1, f"cdi/{device}")) + field(2, driver) + field(3, "pool") + field(4, device))
            for driver, device in pod.claims
        )
        containers.append(field(1, "claimer") + field(5, field(2, "claim") + field(3, pod.namespace) + resources))
    return field(1, pod.name) + field(2, pod.namespace) + b"".join(field(3, one) for one in containers)


def _container(devices: tuple[str, ...]) -> bytes:
    numa = field(1, b"\x08\x01")
    cpus = varint(3 << 3) + varint(7)
    ids = b"".join(field(2, device) for device in devices)
    return field(1, "engine") + field(2, field(1, "example.com/device") + ids + field(3, numa)) + cpus


class Answers(grpc.GenericRpcHandler):
    """Answers List; counts how often it was asked."""

    def __init__(self, answer: bytes) -> None:
        self.answer = answer
        self.asked = 0

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        if details.method != "/v1.PodResourcesLister/List":
            return None
        return grpc.unary_unary_rpc_method_handler(self._list)

    def _list(self, _request: bytes, _context: object) -> bytes:
        self.asked += 1
        return self.answer


@contextlib.contextmanager
def kubelet(socket: pathlib.Path, pods: Iterable[Given]) -> Iterator[Answers]:
    """A kubelet that listens on `socket`."""
    answers = Answers(response(pods))
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers([answers])
    server.add_insecure_port(f"unix://{socket}")
    server.start()
    try:
        yield answers
    finally:
        server.stop(None).wait()
