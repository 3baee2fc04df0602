"""Other people's clients: the released one, one of the field's first draft, one from before the field, a strict one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from mx_wire import Dialect, ListSourcesRequest, SourceIdentity, aio_channel
from tests.parts import released
from tests.server.conftest import READY, STALE, Store

_TYPES = {
    "string": descriptor_pb2.FieldDescriptorProto.TYPE_STRING,
    "uint32": descriptor_pb2.FieldDescriptorProto.TYPE_UINT32,
    "int64": descriptor_pb2.FieldDescriptorProto.TYPE_INT64,
    "float": descriptor_pb2.FieldDescriptorProto.TYPE_FLOAT,
    "int32": descriptor_pb2.FieldDescriptorProto.TYPE_INT32,
}
_ROW = {1: ("mx_source_id", "string"), 2: ("worker_id", "string"), 3: ("model_name", "string")}
_ROW |= {4: ("worker_rank", "uint32"), 5: ("accelerator", "string")}
_UPDATE = {1: ("mx_source_id", "string"), 2: ("worker_rank", "uint32"), 3: ("status", "int32")}
_UPDATE |= {4: ("worker_id", "string")}

DRAFT = (_ROW | {6: ("source_load", "float")}, _UPDATE | {5: ("source_load", "float")})
BEFORE = (_ROW | {6: ("updated_at", "int64")}, _UPDATE)


def _messages(row: dict[int, tuple[str, str]], update: dict[int, tuple[str, str]]) -> tuple[Any, Any]:
    """An old peer's ListSourcesResponse and UpdateStatusRequest, from its own numbering."""
    file = descriptor_pb2.FileDescriptorProto(name="old.proto", package="model_express.p2p", syntax="proto3")
    for name, fields in (("SourceInstanceRef", row), ("UpdateStatusRequest", update)):
        message = file.message_type.add(name=name)
        for number, (field, kind) in fields.items():
            message.field.add(name=field, number=number, type=_TYPES[kind], label=1)
    response = file.message_type.add(name="ListSourcesResponse")
    response.field.add(
        name="instances",
        number=1,
        label=3,
        type=descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE,
        type_name=".model_express.p2p.SourceInstanceRef",
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    names = ("ListSourcesResponse", "UpdateStatusRequest")
    found = [pool.FindMessageTypeByName(f"model_express.p2p.{name}") for name in names]
    return tuple(message_factory.GetMessageClass(each) for each in found)  # type: ignore[return-value]


class OldPeer:
    """Two calls in an old numbering, over a raw channel."""

    def __init__(self, channel: Any, numbering: Any) -> None:
        self.response, self.request = _messages(*numbering)
        path = "/model_express.p2p.P2pService/"
        self._list = channel.unary_unary(
            f"{path}ListSources", ListSourcesRequest.SerializeToString, self.response.FromString
        )
        self._update = channel.unary_unary(f"{path}UpdateStatus", lambda message: message.SerializeToString(), bytes)

    async def rows(self) -> dict[str, Any]:
        answer = await self._list(ListSourcesRequest(status_filter=READY))
        return {row.worker_id: row for row in answer.instances}

    async def update(self, **fields: Any) -> bool:
        """Whether the answer's first field is `success: true`."""
        answer: bytes = await self._update(self.request(**fields))
        return answer.startswith(b"\x08\x01")


async def test_a_draft_client_reads_and_writes_the_load(store: Store) -> None:
    async with store.server() as (server, peer), aio_channel(server.address) as channel:
        draft = OldPeer(channel, DRAFT)
        source_id = await peer.ready("w1", load=0.25)
        await peer.ready("w2")
        rows = await draft.rows()
        assert (rows["w1"].source_load, rows["w2"].source_load) == (0.25, 0.0)
        assert await draft.update(mx_source_id=source_id, worker_id="w1", status=READY, source_load=0.75)
        assert (await peer.loads())["w1"] == 0.75
        assert (await draft.rows())["w1"].source_load == 0.75


async def test_a_client_from_before_the_field_is_served_and_its_heartbeat_stores_absence(store: Store) -> None:
    async with store.server() as (server, peer), aio_channel(server.address) as channel:
        old = OldPeer(channel, BEFORE)
        source_id = await peer.ready("w1", load=0.25)
        (row,) = (await peer.listing()).instances
        assert (await old.rows())["w1"].updated_at == row.updated_at
        assert await old.update(mx_source_id=source_id, worker_id="w1", status=READY)
        assert await peer.loads() == {"w1": None}


@pytest.mark.parametrize(("dialect", "numbering"), [(Dialect.RELEASED, "varint"), (Dialect.DRAFT, "fixed32")])
async def test_a_strict_decoder_finds_one_wire_type_at_six(store: Store, dialect: Dialect, numbering: str) -> None:
    async with store.server(dialect=dialect) as (_, peer):
        await peer.ready("w1", load=0.25)
        (row,) = (await peer.listing()).instances
        assert _wire_types(row.SerializeToString())[6] == {numbering}


async def test_both_dialects_are_answered_at_once(store: Store) -> None:
    async with store.peer() as peer:
        await peer.ready("w1", load=0.25)
        (row,) = (await peer.listing()).instances
        types = _wire_types(row.SerializeToString())
        assert types[6] == {"varint", "fixed32"}
        assert types[10] == {"fixed32"}


def _wire_types(data: bytes) -> dict[int, set[str]]:
    """Which wire types each field number occurs with, as a decoder that trusts nothing reads them."""
    found: dict[int, set[str]] = {}
    position = 0

    def varint() -> int:
        nonlocal position
        value = shift = 0
        while True:
            byte = data[position]
            position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    while position < len(data):
        key = varint()
        kind = {0: "varint", 2: "bytes", 5: "fixed32"}[key & 7]
        found.setdefault(key >> 3, set()).add(kind)
        if kind == "varint":
            varint()
        elif kind == "fixed32":
            position += 4
        else:
            length = varint()
            position += length
    return found


@pytest.mark.released
async def test_the_released_client_publishes_beats_lists_and_reads(store: Store) -> None:
    client_module, p2p = released.module("client"), released.module("p2p_pb2")
    identity = p2p.SourceIdentity(mx_version="0.7.0", model_name="a-model", tensor_parallel_size=1)
    tensor = p2p.TensorDescriptor(name="t", addr=1, size=2, dtype="bfloat16")
    worker = p2p.WorkerMetadata(
        worker_rank=2,
        nixl_metadata=b"agent",
        tensors=[tensor],
        tensor_source=p2p.TensorSourceMetadata(tensors=[tensor]),
        accelerator="cuda",
        topology={"zone": "a"},
    )
    async with store.server() as (server, peer):
        client = client_module.MxClient(server.address)

        def talk() -> None:
            source_id = client.publish_metadata(identity, worker, "w1")
            assert client.update_status(source_id, "w1", 2, READY, 0.5)
            (row,) = client.list_sources(identity, READY).instances
            assert (row.worker_id, row.worker_rank, row.source_load) == ("w1", 2, 0.5)
            assert row.updated_at > 0
            assert dict(row.topology) == {"zone": "a"}
            assert client.update_status(source_id, "w1", 2, READY, None)
            (row,) = client.list_sources(identity, READY).instances
            assert not row.HasField("source_load")
            assert not client.update_status(source_id, "w1", 3, READY, 0.5)
            answer = client.get_metadata(source_id, "w1")
            assert answer.found
            assert list(answer.worker.tensors) == list(answer.worker.tensor_source.tensors) == [tensor]
            assert answer.identity == identity
            assert client.update_status(source_id, "w1", 2, STALE)
            assert not client.list_sources(identity, READY).instances

        try:
            await asyncio.to_thread(talk)
        finally:
            client.close()
        assert await peer.ids(STALE, identity=SourceIdentity.FromString(identity.SerializeToString())) == ["w1"]
