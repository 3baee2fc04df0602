"""What the server promises, on each backend, through the wire: one suite, unchanged, for memory, Redis and Kubernetes.

The cases are the released server's behaviour where its own backends agree, and docs/server.md where they do not.
"""

from __future__ import annotations

import asyncio
import math
import random
import struct
import time
from typing import Any

import grpc
import pytest

from mx_server.reaper import Reaper
from mx_server.telemetry import Telemetry
from mx_wire import (
    ArtifactSourceMetadata,
    BackendFramework,
    Dialect,
    GetMetadataRequest,
    ListSourcesRequest,
    MxSourceType,
    SourceIdentity,
    SourceStatus,
    TensorDescriptor,
    TensorSourceMetadata,
    UpdateStatusRequest,
    WorkerMetadata,
    mx_source_id,
    read_load,
)
from tests.server.conftest import IDENTITY, INITIALIZING, READY, STALE, UNKNOWN, Store

TENSORS = [
    TensorDescriptor(name="embed", addr=2**63 + 5, size=2**40, device_id=1, dtype="bfloat16"),
    TensorDescriptor(name="layers.0.norm", addr=64, size=8, device_id=1, dtype="float32"),
]


def _float32(value: float) -> float:
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


# -- publishing and reading back ------------------------------------------------------------------------------------


async def test_a_published_worker_is_unknown_until_its_first_heartbeat(store: Store) -> None:
    async with store.peer() as peer:
        source_id = await peer.publish("w1")
        assert source_id == mx_source_id(IDENTITY)
        assert await peer.ids(READY) == []
        assert await peer.ids(UNKNOWN) == await peer.ids(None) == ["w1"]
        await peer.update(source_id)
        assert await peer.ids(READY) == ["w1"]
        assert await peer.ids(UNKNOWN) == []


async def test_stamps_are_taken_on_receipt_whatever_the_publisher_says(store: Store) -> None:
    async with store.peer() as peer:
        before = time.time() * 1000 - 2000
        source_id = await peer.publish("w1", updated_at=7)
        (row,) = (await peer.listing(None)).instances
        assert before < row.updated_at < time.time() * 1000 + 2000
        await asyncio.sleep(0.01)
        await peer.update(source_id)
        (later,) = (await peer.listing()).instances
        assert later.updated_at > row.updated_at


async def test_everything_published_is_found_again(store: Store) -> None:
    identity = SourceIdentity(
        mx_version="0.7.0",
        mx_source_type=MxSourceType.MX_SOURCE_TYPE_TORCH_COMPILE_CACHE,
        model_name="Org/A_Model",
        backend_framework=BackendFramework.BACKEND_FRAMEWORK_SGLANG,
        tensor_parallel_size=8,
        quantization="fp8",
        extra_parameters={"training_step": "12", "layout_signature": "abc", "Ünïcode": "ß"},
        revision="r1",
        gpu_arch="sm90",
    )
    published: dict[str, Any] = {
        "nixl_metadata": bytes(range(256)),
        "metadata_endpoint": "10.0.0.1:5555",
        "agent_name": "agent-é",
        "worker_grpc_endpoint": "10.0.0.1:6555",
        "accelerator": "cuda",
        "topology": {"zone": "a", "rack": "r 7"},
        "tensor_source": TensorSourceMetadata(tensors=TENSORS),
        "status": INITIALIZING,
    }
    async with store.peer() as peer:
        source_id = await peer.publish("w1", 3, identity, **published)
        answer = await peer.stub.GetMetadata(GetMetadataRequest(mx_source_id=source_id, worker_id="w1"))
        assert answer.found
        assert (answer.mx_source_id, answer.worker_id, answer.identity) == (source_id, "w1", identity)
        expected = WorkerMetadata(worker_rank=3, tensors=TENSORS, updated_at=answer.worker.updated_at, **published)
        assert answer.worker == expected
        (row,) = (await peer.listing(INITIALIZING)).instances
        assert row.updated_at == answer.worker.updated_at > 0
        assert (row.training_step, row.layout_signature, dict(row.topology)) == (12, "abc", published["topology"])
        assert (row.model_name, row.worker_rank, row.accelerator) == ("Org/A_Model", 3, "cuda")


@pytest.mark.parametrize(
    "worker",
    [
        WorkerMetadata(transfer_engine_session_id="10.0.0.1:777"),
        WorkerMetadata(nixl_metadata=b""),
        WorkerMetadata(artifact_source=ArtifactSourceMetadata(artifact_id="a", total_size=2**60, file_count=2)),
        WorkerMetadata(artifact_source=ArtifactSourceMetadata(artifact_id="b", chunk_count=2**32 - 1, node_rank=9)),
        WorkerMetadata(),
    ],
    ids=["transfer engine", "empty nixl", "artifact", "artifact on a node", "nothing"],
)
async def test_each_kind_of_payload_is_found_again(store: Store, worker: WorkerMetadata) -> None:
    async with store.peer() as peer:
        fields = {field.name: getattr(worker, field.name) for field, _ in worker.ListFields()}
        if worker.WhichOneof("backend_metadata") == "nixl_metadata":
            fields["nixl_metadata"] = b""
        source_id = await peer.publish("w1", **fields)
        answer = await peer.stub.GetMetadata(GetMetadataRequest(mx_source_id=source_id, worker_id="w1"))
        assert answer.worker.WhichOneof("backend_metadata") == worker.WhichOneof("backend_metadata")
        assert answer.worker.artifact_source == worker.artifact_source
        assert answer.worker.transfer_engine_session_id == worker.transfer_engine_session_id
        # As the released server: a worker without an artifact has a (possibly empty) tensor source.
        expected = worker.WhichOneof("source_payload") or "tensor_source"
        assert answer.worker.WhichOneof("source_payload") == expected


async def test_tensors_in_the_old_field_only_are_readable_in_both(store: Store) -> None:
    async with store.peer() as peer:
        source_id = await peer.publish("w1", tensors=TENSORS)
        answer = await peer.stub.GetMetadata(GetMetadataRequest(mx_source_id=source_id, worker_id="w1"))
        assert list(answer.worker.tensors) == list(answer.worker.tensor_source.tensors) == TENSORS


async def test_a_worker_that_publishes_again_replaces_itself_whole(store: Store) -> None:
    async with store.peer() as peer:
        source_id = await peer.ready("w1", 1, load=0.5, agent_name="old", tensors=TENSORS, topology={"zone": "a"})
        assert await peer.publish("w1", 2, accelerator="rocm") == source_id
        answer = await peer.stub.GetMetadata(GetMetadataRequest(mx_source_id=source_id, worker_id="w1"))
        assert (answer.worker.agent_name, answer.worker.worker_rank) == ("", 2)
        assert not answer.worker.tensors
        assert answer.worker.status == UNKNOWN
        (row,) = (await peer.listing(None)).instances
        assert (row.worker_rank, row.accelerator, dict(row.topology)) == (2, "rocm", {})
        assert not row.HasField("source_load")
        assert not (await peer.update(source_id, "w1", 1)).success


async def test_one_worker_id_under_two_identities_is_two_rows(store: Store) -> None:
    other = SourceIdentity(model_name="another")
    async with store.peer() as peer:
        first, second = await peer.ready("w1", load=0.25), await peer.ready("w1", identity=other, load=0.75)
        assert first != second
        rows = {row.mx_source_id: read_load(row) for row in (await peer.listing()).instances}
        assert rows == {first: 0.25, second: 0.75}


@pytest.mark.parametrize(
    "worker_id", ["W_1", "a/b c", "ünï", "x" * 253, "-", ".", "..", "a" * 64, 'q"\\\n\t', "w%2F1", "\x00"]
)
async def test_any_worker_id_works(store: Store, worker_id: str) -> None:
    async with store.peer() as peer:
        source_id = await peer.ready(worker_id, load=0.5)
        assert await peer.ids() == [worker_id]
        answer = await peer.stub.GetMetadata(GetMetadataRequest(mx_source_id=source_id, worker_id=worker_id))
        assert answer.found


@pytest.mark.parametrize("key", [("", "w1"), ("f" * 16, "w1"), ("../x", "w1"), ("F" * 16, "w1"), ("f" * 17, "w")])
async def test_what_is_not_there_is_not_found(store: Store, key: tuple[str, str]) -> None:
    async with store.peer() as peer:
        await peer.ready("w1")
        answer = await peer.stub.GetMetadata(GetMetadataRequest(mx_source_id=key[0], worker_id=key[1]))
        assert not answer.found
        assert not answer.HasField("worker")
        assert not (await peer.update(*key)).success
        assert await peer.ids(None) == ["w1"]


# -- status and load ------------------------------------------------------------------------------------------------


async def test_the_load_is_carried_bit_for_bit(store: Store) -> None:
    numbers = random.Random(1)
    marked = [struct.unpack("<f", struct.pack("<I", 0x3F00A500 | nonce))[0] for nonce in (0, 7, 255)]
    loads = [0.0, 1.0, 0.1, 1e-30, 0.99862515926361, *marked, *(numbers.random() for _ in range(10))]
    async with store.peer() as peer:
        source_id = await peer.publish("w1")
        for load in loads:
            assert (await peer.update(source_id, load=load)).success
            assert await peer.loads() == {"w1": _float32(load)}


async def test_a_heartbeat_without_a_load_stores_absence_and_zero_is_not_absence(store: Store) -> None:
    async with store.peer() as peer:
        source_id = await peer.ready("w1", load=0.5)
        await peer.update(source_id, load=None)
        assert await peer.loads() == {"w1": None}
        await peer.update(source_id, load=0.0)
        assert await peer.loads() == {"w1": 0.0}


async def test_stale_clears_the_load_even_when_it_carries_one(store: Store) -> None:
    async with store.peer() as peer:
        source_id = await peer.ready("w1", load=0.5)
        assert (await peer.update(source_id, status=STALE, load=0.9)).success
        assert await peer.ids(READY) == []
        assert await peer.loads(STALE) == {"w1": None}


async def test_every_change_of_status_is_taken_as_the_released_server_does(store: Store) -> None:
    async with store.peer() as peer:
        source_id = await peer.publish("w1")
        for status in (READY, STALE, READY, INITIALIZING, STALE, UNKNOWN, STALE, INITIALIZING, READY):
            assert (await peer.update(source_id, status=status, load=0.5)).success
            assert await peer.ids(status) == ["w1"]


@pytest.mark.parametrize("load", [math.nan, math.inf, -math.inf])
async def test_a_load_that_is_no_number_is_refused_and_changes_nothing(store: Store, load: float) -> None:
    async with store.peer() as peer:
        source_id = await peer.ready("w1", load=0.5)
        before = (await peer.listing()).instances[0]
        answer = await peer.update(source_id, load=load)
        assert not answer.success
        assert "source_load" in answer.message
        assert (await peer.listing()).instances[0] == before


@pytest.mark.parametrize(("load", "stored"), [(2.5, 1.0), (-1.0, 0.0), (-0.0, 0.0), (1.0000001, 1.0)])
async def test_a_load_out_of_range_is_clamped(store: Store, load: float, stored: float) -> None:
    async with store.peer() as peer:
        await peer.ready("w1", load=load)
        (value,) = (await peer.loads()).values()
        assert value == stored
        assert math.copysign(1, value) == 1


async def test_another_rank_is_refused_by_name_and_changes_nothing(store: Store) -> None:
    async with store.peer() as peer:
        source_id = await peer.ready("w1", 3, load=0.5)
        before = (await peer.listing()).instances[0]
        answer = await peer.update(source_id, "w1", 4, STALE)
        assert not answer.success
        assert "worker_rank 4" in answer.message
        assert "3" in answer.message
        assert (await peer.listing()).instances[0] == before


async def test_an_update_never_creates_a_worker(store: Store) -> None:
    async with store.peer() as peer:
        source_id = await peer.ready("w1")
        answer = await peer.update(source_id, "ghost")
        assert not answer.success
        assert "ghost" in answer.message
        assert not (await peer.update("f" * 16, "w1")).success
        assert await peer.ids(None) == ["w1"]


# -- listing --------------------------------------------------------------------------------------------------------


async def test_every_filter(store: Store) -> None:
    other = SourceIdentity(model_name="another", extra_parameters={"version": "5"})
    step9 = SourceIdentity(model_name="another", extra_parameters={"training_step": "9", "version": "1"})
    bad = SourceIdentity(model_name="another", extra_parameters={"training_step": "-3"})
    async with store.peer() as peer:
        await peer.ready("a", 0)
        await peer.ready("b", 1)
        await peer.ready("c", 1, identity=other)
        await peer.ready("d", 2, identity=step9)
        await peer.ready("e", 2, identity=bad)
        assert await peer.ids() == ["e", "d", "c", "b", "a"]
        assert await peer.ids(identity=IDENTITY) == ["b", "a"]
        assert await peer.ids(identity=SourceIdentity(dtype="no model name: no filter")) == ["e", "d", "c", "b", "a"]
        assert await peer.ids(identity=SourceIdentity(model_name="nobody has it")) == []
        assert await peer.ids(model_name_filter="another") == ["e", "d", "c"]
        assert await peer.ids(model_name_filter="Another") == []
        assert await peer.ids(model_name_filter="") == []
        assert await peer.ids(worker_rank_filter=1) == ["c", "b"]
        assert await peer.ids(worker_rank_filter=0) == ["a"]
        assert await peer.ids(min_training_step=0) == ["d", "c"]
        assert await peer.ids(min_training_step=6) == ["d"]
        assert await peer.ids(min_training_step=10) == []
        assert await peer.ids(limit=2) == ["e", "d"]
        assert await peer.ids(limit=0) == ["e", "d", "c", "b", "a"]
        assert await peer.ids(limit=2, model_name_filter="a-model") == ["b", "a"]
        stamp = {row.worker_id: row.updated_at for row in (await peer.listing()).instances}
        assert await peer.ids(min_updated_at=stamp["c"]) == ["e", "d", "c"]
        assert await peer.ids(min_updated_at=stamp["e"] + 1) == []
        assert await peer.ids(STALE) == []


async def test_a_silent_source_leaves_the_ready_listing_by_itself(store: Store) -> None:
    async with store.peer(heartbeat_timeout=0.6) as peer:
        source_id = await peer.ready("silent")
        await peer.ready("alive")
        for _ in range(4):
            await asyncio.sleep(0.2)
            await peer.update(source_id, "alive")
        assert await peer.ids(READY) == ["alive"]
        assert await peer.ids(READY, limit=2) == ["alive"]
        assert sorted(await peer.ids(None)) == ["alive", "silent"], "without the filter, age is not looked at"
        await peer.update(source_id, "silent")
        assert sorted(await peer.ids(READY)) == ["alive", "silent"]


async def test_a_status_filter_that_does_not_exist_is_refused(store: Store) -> None:
    async with store.peer() as peer:
        with pytest.raises(grpc.aio.AioRpcError, match="status_filter 9") as refused:
            await peer.stub.ListSources(ListSourcesRequest(status_filter=9))  # type: ignore[arg-type]
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("dialect", list(Dialect))
async def test_each_dialect_carries_the_load(store: Store, dialect: Dialect) -> None:
    async with store.peer(dialect=dialect) as peer:
        await peer.ready("w1", load=0.5)
        (row,) = (await peer.listing()).instances
        assert read_load(row) == 0.5
        assert row.HasField("source_load") == (dialect is not Dialect.DRAFT)
        assert (row.updated_at > 0) == (dialect is not Dialect.DRAFT)


async def test_a_server_told_to_drop_the_load_takes_it_and_lists_none(store: Store) -> None:
    async with store.peer(keeps_load=False) as peer:
        await peer.ready("w1", load=0.5)
        (row,) = (await peer.listing()).instances
        assert read_load(row) is None


# -- reaper ---------------------------------------------------------------------------------------------------------


async def _reaper(store: Store, heartbeat_timeout: int, gc_timeout: int) -> Reaper:
    return Reaper(await store.backend(), Telemetry(store.kind), heartbeat_timeout, gc_timeout, 3600)


async def test_the_reaper_marks_silent_sources_stale_and_forgets_them_later(store: Store) -> None:
    async with store.peer() as peer:
        source_id = await peer.ready("ready", load=0.5)
        await peer.publish("initializing", status=INITIALIZING)
        await peer.publish("died before its first heartbeat")
        await (await _reaper(store, 60_000, 60_000)).scan()
        assert await peer.ids(READY) == ["ready"]
        await asyncio.sleep(0.15)
        await peer.ready("fresh", load=0.25)
        await (await _reaper(store, 140, 60_000)).scan()
        assert await peer.loads(STALE) == {"ready": None, "initializing": None}
        assert await peer.loads(READY) == {"fresh": 0.25}
        assert await peer.ids(UNKNOWN) == ["died before its first heartbeat"]
        await asyncio.sleep(0.15)
        await peer.update(source_id, "fresh", load=0.25)
        await (await _reaper(store, 60_000, 140)).scan()
        assert sorted(await peer.ids(None)) == ["fresh"]
        answer = await peer.stub.GetMetadata(GetMetadataRequest(mx_source_id=source_id, worker_id="ready"))
        assert not answer.found
        assert not (await peer.update(source_id, "ready")).success


async def test_a_scan_never_undoes_a_heartbeat_that_came_after_it_looked(store: Store) -> None:
    backend = await store.backend()
    async with store.peer() as peer:
        source_id = await peer.ready("w1", load=0.5)
        (row,) = (await backend.listing(None)).rows
        await peer.update(source_id, load=0.5)
        assert not await backend.expire(row)
        assert not await backend.forget(row)
        assert await peer.loads(READY) == {"w1": 0.5}
        (row,) = (await backend.listing(source_id)).rows
        assert await backend.expire(row)
        assert not await backend.expire(row), "a second replica's scan finds it changed"
        assert await peer.ids(STALE) == ["w1"]
        (row,) = (await backend.listing(None)).rows
        assert await backend.forget(row)
        assert not await backend.forget(row)
        assert await peer.ids(None) == []


async def test_a_forgotten_worker_can_come_back(store: Store) -> None:
    backend = await store.backend()
    async with store.peer() as peer:
        await peer.ready("w1")
        for row in (await backend.listing(None)).rows:
            assert await backend.forget(row)
        await peer.ready("w1", load=0.5)
        assert await peer.loads() == {"w1": 0.5}


# -- many at once ---------------------------------------------------------------------------------------------------


async def test_a_thousand_concurrent_heartbeats_and_lists_lose_nothing(store: Store) -> None:
    workers, heartbeats = 50, 1000
    async with store.peer() as peer:
        gate = asyncio.Semaphore(64)
        source_id = mx_source_id(IDENTITY)
        await asyncio.gather(*(peer.publish(f"w{number}", number) for number in range(workers)))

        async def heartbeat(number: int) -> None:
            async with gate:
                worker = number % workers
                answer = await peer.update(source_id, f"w{worker}", worker, READY, number / heartbeats)
                assert answer.success, answer.message

        async def reading() -> None:
            async with gate:
                rows = (await peer.listing()).instances
                assert len(rows) <= workers
                for row in rows:
                    # Each row is one of its own worker's writes, whole.
                    assert round(row.source_load * heartbeats) % workers == row.worker_rank

        # Round by round, so that the last write of each worker is known.
        for start in range(0, heartbeats, workers):
            numbers = range(start, start + workers)
            await asyncio.gather(*(heartbeat(number) for number in numbers), *(reading() for _ in range(3)))
            expected = {f"w{number % workers}": _float32(number / heartbeats) for number in numbers}
            assert await peer.loads() == expected


async def test_concurrent_publishes_of_one_worker_leave_one_whole_worker(store: Store) -> None:
    async with store.peer() as peer:

        async def publish(number: int) -> str:
            return await peer.publish("w1", number, agent_name=f"agent-{number}", tensors=TENSORS[: number % 3])

        (source_id,) = set(await asyncio.gather(*(publish(number) for number in range(12))))
        answer = await peer.stub.GetMetadata(GetMetadataRequest(mx_source_id=source_id, worker_id="w1"))
        rank = answer.worker.worker_rank
        assert answer.worker.agent_name == f"agent-{rank}"
        assert list(answer.worker.tensors) == TENSORS[: rank % 3]
        assert (await peer.update(source_id, "w1", rank)).success


async def test_bad_requests_name_the_field(store: Store) -> None:
    async with store.peer() as peer:
        source_id = await peer.ready("w1")
        assert "worker_id" in (await peer.try_publish("")).message
        assert "worker_id" in (await peer.try_publish("x" * 254)).message
        assert "identity.model_name" in (await peer.try_publish(identity=SourceIdentity(dtype="fp8"))).message
        assert "worker.worker_rank" in (await peer.try_publish(rank=2**31)).message
        assert "worker.status" in (await peer.try_publish(status=SourceStatus.ValueType(11))).message
        assert "mx_source_id" in (await peer.update("")).message
        assert "worker_id" in (await peer.update(source_id, "")).message
        request = UpdateStatusRequest(mx_source_id=source_id, worker_id="w1", status=SourceStatus.ValueType(4))
        assert "status 4" in (await peer.stub.UpdateStatus(request)).message
        assert await peer.ids(None) == ["w1"]
