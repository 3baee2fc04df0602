"""Whatever anybody sends: no crash, no UNKNOWN, and a refusal that names the field. Seen through the wire."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mx_server.app import Server
from mx_server.settings import Settings
from mx_wire import (
    ArtifactSourceMetadata,
    GetMetadataRequest,
    ListSourcesRequest,
    P2pServiceStub,
    PublishMetadataRequest,
    SourceIdentity,
    TensorDescriptor,
    TensorSourceMetadata,
    UpdateStatusRequest,
    WorkerMetadata,
    channel,
    read_load,
)
from tests.server.conftest import READY

EXAMPLES = 10_000 if os.environ.get("MX_TEST_LONG") == "1" else 300
RPCS = ("PublishMetadata", "ListSources", "GetMetadata", "UpdateStatus")

# Half of all ids are ones that exist, so that requests get past the first check.
_text = st.text(max_size=8) | st.sampled_from(["", "\x00", "../..", "a" * 300, "Ünï", "%s{}", "\u202e"])
_worker_ids = st.sampled_from(["w1", "w2"]) | _text
_uint32 = st.integers(0, 3) | st.integers(0, 2**32 - 1)
_uint64 = st.integers(0, 2**64 - 1)
_enums: st.SearchStrategy[Any] = st.integers(0, 3) | st.integers(-(2**31), 2**31 - 1)
_floats = st.floats(width=32)
_maps = st.dictionaries(_text, _text, max_size=3)


def _maybe(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | strategy


_identities = st.builds(
    SourceIdentity,
    mx_source_type=_enums,
    model_name=st.just("m") | _text,
    backend_framework=_enums,
    tensor_parallel_size=_uint32,
    dtype=_text,
    extra_parameters=_maps | st.dictionaries(st.sampled_from(["training_step", "version", "layout_signature"]), _text),
    gpu_arch=_text,
)
_tensors = st.lists(st.builds(TensorDescriptor, name=_text, addr=_uint64, size=_uint64, device_id=_uint32), max_size=2)
_workers = st.builds(
    WorkerMetadata,
    worker_rank=_uint32,
    nixl_metadata=_maybe(st.binary(max_size=20)),
    tensors=_tensors,
    status=_enums,
    updated_at=st.integers(-(2**63), 2**63 - 1),
    metadata_endpoint=_text,
    topology=_maps,
    tensor_source=_maybe(st.builds(TensorSourceMetadata, tensors=_tensors)),
) | st.builds(
    WorkerMetadata,
    transfer_engine_session_id=_text,
    artifact_source=st.builds(ArtifactSourceMetadata, artifact_id=_text, total_size=_uint64, file_count=_uint32),
)
_publishes = st.builds(
    PublishMetadataRequest,
    identity=_maybe(_identities),
    worker=_maybe(_workers),
    worker_id=_worker_ids,
    pod_name=_text,
    pod_uid=_text,
    pod_namespace=_text,
)
_lists = st.builds(
    ListSourcesRequest,
    identity=_maybe(_identities),
    status_filter=_maybe(_enums),
    model_name_filter=_maybe(_text),
    worker_rank_filter=_maybe(_uint32),
    min_training_step=_maybe(_uint64),
    min_updated_at=_maybe(st.integers(-(2**63), 2**63 - 1)),
    limit=_maybe(_uint32),
)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A server in a thread of its own, so that hypothesis can drive it from outside."""
    loop, ready, stop = asyncio.new_event_loop(), threading.Event(), asyncio.Event()
    found: list[str] = []

    async def serve() -> None:
        async with Server(Settings(listen="127.0.0.1:0", reaper_interval=0.05, heartbeat_timeout=3600)) as server:
            found.append(server.address)
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    assert ready.wait(10)
    yield found[0]
    loop.call_soon_threadsafe(stop.set)
    thread.join(10)
    loop.close()


@pytest.fixture(scope="module")
def stub(address: str) -> Iterator[P2pServiceStub]:
    with channel(address) as connection:
        yield P2pServiceStub(connection)


@pytest.fixture(scope="module")
def source_id(stub: P2pServiceStub) -> str:
    identity, worker = SourceIdentity(model_name="m"), WorkerMetadata()
    answers = [
        stub.PublishMetadata(PublishMetadataRequest(identity=identity, worker=worker, worker_id=worker_id))
        for worker_id in ("w1", "w2")
    ]
    return answers[0].mx_source_id


_run = settings(
    max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], database=None
)


def _names_a_field(message: str, request: Any) -> bool:
    """Whether a refusal starts with a field of the request, or with a path into one."""
    first = message.split(" ", 1)[0].split(".")[0]
    return first in {field.name for field in request.DESCRIPTOR.fields}


@pytest.mark.timeout(600)
@_run
@given(request=_publishes)
def test_any_publish(stub: P2pServiceStub, source_id: str, request: PublishMetadataRequest) -> None:
    answer = stub.PublishMetadata(request, timeout=10)
    assert answer.success or _names_a_field(answer.message, request), answer.message
    if answer.success:
        found = stub.GetMetadata(GetMetadataRequest(mx_source_id=answer.mx_source_id, worker_id=request.worker_id))
        assert found.found
        assert found.identity == request.identity
        assert found.worker.worker_rank == request.worker.worker_rank


@pytest.mark.timeout(600)
@_run
@given(data=st.data(), worker_id=_worker_ids, rank=_uint32, status=_enums, load=_maybe(_floats))
def test_any_update(
    stub: P2pServiceStub, source_id: str, data: st.DataObject, worker_id: str, rank: int, status: Any, load: Any
) -> None:
    known = data.draw(st.just(source_id) | _text)
    request = UpdateStatusRequest(
        mx_source_id=known, worker_id=worker_id, worker_rank=rank, status=status, source_load=load
    )
    answer = stub.UpdateStatus(request, timeout=10)
    assert answer.success or _names_a_field(answer.message, request), answer.message


@pytest.mark.timeout(600)
@_run
@given(request=_lists)
def test_any_listing(stub: P2pServiceStub, source_id: str, request: ListSourcesRequest) -> None:
    try:
        rows = stub.ListSources(request, timeout=10).instances
    except grpc.RpcError as error:
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT  # noqa: PT017 - either outcome is right
        assert _names_a_field(error.details() or "", request)  # noqa: PT017
        return
    assert not request.limit or len(rows) <= request.limit
    assert all((load := read_load(row)) is None or 0 <= load <= 1 for row in rows)


@pytest.mark.timeout(600)
@_run
@given(data=st.data(), worker_id=_worker_ids)
def test_any_look_up(stub: P2pServiceStub, source_id: str, data: st.DataObject, worker_id: str) -> None:
    known = data.draw(st.just(source_id) | _text)
    answer = stub.GetMetadata(GetMetadataRequest(mx_source_id=known, worker_id=worker_id), timeout=10)
    assert answer.found == (known == source_id and worker_id in ("w1", "w2"))


@pytest.mark.timeout(600)
@_run
@given(rpc=st.sampled_from(RPCS), body=st.binary(max_size=60))
def test_any_bytes(address: str, stub: P2pServiceStub, source_id: str, rpc: str, body: bytes) -> None:
    call = _raw(address).unary_unary(f"/model_express.p2p.P2pService/{rpc}", lambda data: data, lambda data: data)
    try:
        call(body, timeout=10)
    except grpc.RpcError as error:
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT  # noqa: PT017 - either outcome is right


_channels: dict[str, grpc.Channel] = {}


def _raw(address: str) -> grpc.Channel:
    if address not in _channels:
        _channels[address] = channel(address)
    return _channels[address]


def test_the_server_is_as_well_as_before(stub: P2pServiceStub, source_id: str) -> None:
    identity = SourceIdentity(model_name="m")
    worker = WorkerMetadata(worker_rank=5)
    assert stub.PublishMetadata(PublishMetadataRequest(identity=identity, worker=worker, worker_id="w1")).success
    request = UpdateStatusRequest(mx_source_id=source_id, worker_id="w1", worker_rank=5, status=READY, source_load=0.5)
    assert stub.UpdateStatus(request).success
    rows = stub.ListSources(
        ListSourcesRequest(status_filter=READY, model_name_filter="m", worker_rank_filter=5)
    ).instances
    assert "w1" in [row.worker_id for row in rows]
