"""What the Kubernetes backend leaves in the cluster, whom it shares it with, and what a failing cluster does to it."""

from __future__ import annotations

import asyncio
import datetime
import json
import random
import time
import urllib.error
from collections.abc import AsyncIterator
from typing import Any, TypeVar

import grpc
import pytest

from mx_server.settings import Kubernetes
from mx_wire import (
    ArtifactSourceMetadata,
    GetMetadataRequest,
    MxSourceType,
    SourceIdentity,
    TensorDescriptor,
    aio_channel,
    aio_stub,
    mx_source_id,
)
from tests.parts.kubernetes import ApiServer
from tests.server.conftest import (
    IDENTITY,
    INITIALIZING,
    NAME,
    READY,
    STALE,
    TENSORS,
    Peer,
    kubernetes_settings,
    serving,
)

pytestmark = pytest.mark.tools("etcd", "kube-apiserver")

_T = TypeVar("_T")


@pytest.fixture
async def peer(namespace: Kubernetes) -> AsyncIterator[Peer]:
    async with serving(kubernetes_settings(namespace)) as server, aio_channel(server.address) as channel:
        yield Peer(aio_stub(channel))


class Objects:
    """The namespace as kubectl sees it."""

    def __init__(self, api: ApiServer, namespace: str) -> None:
        self._api, self._namespace = api, namespace
        self.base = f"/apis/modelexpress.nvidia.com/v1alpha1/namespaces/{namespace}/modelmetadatas"

    def get(self, name: str = NAME) -> Any:
        return self._api.request("GET", f"{self.base}/{name}")

    def patch(self, body: Any, name: str = NAME, sub: str = "/status") -> Any:
        content = "application/json-patch+json" if isinstance(body, list) else "application/merge-patch+json"
        return self._api.request("PATCH", f"{self.base}/{name}{sub}", body, content=content)

    def create(self, name: str, source_id: str, worker_id: str, worker: Any) -> None:
        """An object as the upstream server writes it: no annotation of ours."""
        labels = {"modelexpress.nvidia.com/mx-source-id": source_id, "modelexpress.nvidia.com/mx-worker-id": worker_id}
        body = {
            "apiVersion": "modelexpress.nvidia.com/v1alpha1",
            "kind": "ModelMetadata",
            "metadata": {"name": name, "labels": labels},
            "spec": {"modelName": "a-model", "sourceType": "weights"},
        }
        self._api.request("POST", self.base, body)
        if worker is not None:
            self.patch({"status": {"worker": worker}}, name)

    def config_map(self, name: str) -> Any:
        return self._api.request("GET", f"/api/v1/namespaces/{self._namespace}/configmaps/{name}")


@pytest.fixture
def objects(api_server: ApiServer, namespace: Kubernetes) -> Objects:
    return Objects(api_server, namespace.namespace)


# -- the objects ----------------------------------------------------------------------------------------------------


async def test_a_worker_is_an_object_of_the_deployed_form(
    peer: Peer, objects: Objects, namespace: Kubernetes, api_server: ApiServer
) -> None:
    pod = api_server.request(
        "POST",
        f"/api/v1/namespaces/{namespace.namespace}/pods",
        {"metadata": {"name": "worker-0"}, "spec": {"containers": [{"name": "c", "image": "i"}]}},
    )
    identity = SourceIdentity()
    identity.CopyFrom(IDENTITY)
    identity.mx_source_type = MxSourceType.MX_SOURCE_TYPE_LORA
    name = f"mx-source-{mx_source_id(identity)}-w1"
    await peer.ready(
        "w1",
        3,
        load=0.5,
        identity=identity,
        nixl_metadata=b"\x00\xff",
        metadata_endpoint="10.0.0.1:5555",
        agent_name="agent",
        worker_grpc_endpoint="10.0.0.1:6558",
        accelerator="cuda",
        tensors=TENSORS,
        pod_name="worker-0",
        pod_uid=pod["metadata"]["uid"],
        pod_namespace=namespace.namespace,
    )
    found = objects.get(name)
    assert found["metadata"]["labels"] == {
        "modelexpress.nvidia.com/mx-source-id": mx_source_id(identity),
        "modelexpress.nvidia.com/mx-worker-id": "w1",
    }
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "worker-0", "uid": pod["metadata"]["uid"], "controller": False}
    assert found["metadata"]["ownerReferences"] == [owner]
    assert "finalizers" not in found["metadata"]
    assert "managedFields" not in found["metadata"], "half of each object, and of each listing"
    assert found["spec"] == {"modelName": "a-model", "sourceType": "lora"}
    status = found["status"]
    stamp = status["worker"].pop("updatedAt")
    assert abs(_seconds(stamp) - time.time()) < 30
    assert status["worker"] == {
        "workerRank": 3,
        "backendType": "nixl",
        "nixlMetadata": "AP8=",
        "tensorCount": 1,
        "tensorConfigMap": f"{name}-tensors-worker-3",
        "metadataEndpoint": "10.0.0.1:5555",
        "agentName": "agent",
        "workerGrpcEndpoint": "10.0.0.1:6558",
        "accelerator": "cuda",
        "sourceLoad": 0.5,
        "status": "Ready",
    }
    (condition,) = status["conditions"]
    assert (condition["type"], condition["status"], condition["reason"]) == ("Ready", "True", "WorkerReady")
    config_map = objects.config_map(f"{name}-tensors-worker-3")
    (owner,) = config_map["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("ModelMetadata", name, found["metadata"]["uid"])
    expected = {"name": "t", "addr": str(2**63 + 1), "size": str(2**40), "device_id": 1, "dtype": "bfloat16"}
    assert json.loads(config_map["data"]["tensors.json"]) == [expected]


def _seconds(stamp: str) -> float:
    return datetime.datetime.fromisoformat(stamp).timestamp()


async def test_a_pod_of_another_namespace_owns_nothing(peer: Peer, objects: Objects) -> None:
    await peer.publish("w1", pod_name="p", pod_uid="u", pod_namespace="elsewhere")
    assert "ownerReferences" not in objects.get()["metadata"]


async def test_a_worker_that_publishes_again_moves_to_its_new_pod(
    peer: Peer, objects: Objects, namespace: Kubernetes
) -> None:
    pod: Any = {"pod_namespace": namespace.namespace, "pod_name": "p"}
    await peer.publish("w1", pod_uid="first", **pod)
    objects.patch({"metadata": {"labels": {"team": "a"}}}, sub="")
    await peer.publish("w1", pod_uid="second", **pod)
    metadata = objects.get()["metadata"]
    assert [owner["uid"] for owner in metadata["ownerReferences"]] == ["second"]
    assert metadata["labels"]["team"] == "a", "what others put on the object stays"
    await peer.publish("w1")
    metadata = objects.get()["metadata"]
    assert "ownerReferences" not in metadata
    assert "managedFields" not in metadata


async def test_the_condition_keeps_the_time_of_its_last_change(peer: Peer, objects: Objects) -> None:
    source_id = await peer.publish("w1")
    objects.patch({"status": {"conditions": [{**_condition(objects), "lastTransitionTime": "2020-01-01T00:00:00Z"}]}})
    await peer.update(source_id, status=INITIALIZING)
    assert _condition(objects)["lastTransitionTime"] == "2020-01-01T00:00:00Z"
    assert _condition(objects)["reason"] == "WorkerInitializing"
    await peer.update(source_id, status=READY)
    assert _condition(objects)["status"] == "True"
    assert _condition(objects)["lastTransitionTime"] > "2026"


def _condition(objects: Objects) -> Any:
    return objects.get()["status"]["conditions"][0]


async def test_a_heartbeat_is_one_request(peer: Peer, namespace: Kubernetes, api_server: ApiServer) -> None:
    source_id = await peer.ready("w1", load=0.5)

    def verbs() -> list[str]:
        events = api_server.audit()
        return [
            event["verb"]
            for event in events
            if event.get("objectRef", {}).get("namespace") == namespace.namespace
            and event["objectRef"]["resource"] == "modelmetadatas"
        ]

    before = len(verbs())
    for load in (0.6, None, 0.7):
        assert (await peer.update(source_id, load=load)).success
    await asyncio.sleep(0.2)
    assert verbs()[before:] == ["patch"] * 3


# -- others who read and write the same objects -----------------------------------------------------------------------


async def test_objects_of_the_upstream_server_are_read_and_kept_up(peer: Peer, objects: Objects) -> None:
    source_id = "0123456789abcdef"
    worker = {
        "workerRank": 2,
        "backendType": "transfer_engine",
        "transferEngineSessionId": "10.0.0.1:7",
        "sourceLoad": 2.5,
        "status": "Ready",
        "updatedAt": "2026-01-01T00:00:00.123456789+00:00",
    }
    objects.create("mx-source-0123456789abcdef-abcd1234", source_id, "abcd1234", worker)
    (row,) = (await peer.listing(None)).instances
    assert (row.mx_source_id, row.worker_id, row.worker_rank, row.model_name) == (source_id, "abcd1234", 2, "a-model")
    assert row.source_load == 1.0, "the upstream server stores any number; rows carry loads from 0 to 1"
    assert row.updated_at == 1767225600123
    assert await peer.ids(READY) == [], "a heartbeat of long ago"
    answer = await peer.stub.GetMetadata(GetMetadataRequest(mx_source_id=source_id, worker_id="abcd1234"))
    assert answer.worker.transfer_engine_session_id == "10.0.0.1:7"
    assert answer.identity.model_name == "a-model"
    assert (await peer.update(source_id, "abcd1234", 2, READY, 0.25)).success
    assert await peer.loads(READY) == {"abcd1234": 0.25}


async def test_a_writer_beside_the_server_changes_the_load_without_keeping_anybody_alive(
    peer: Peer, objects: Objects
) -> None:
    """The operator's Kubernetes writer: a patch under conditions, which a stale worker refuses."""
    source_id = await peer.ready("w1", load=0.5)
    before = (await peer.listing()).instances[0].updated_at
    patch = [
        {"op": "test", "path": "/status/worker/status", "value": "Ready"},
        {"op": "test", "path": "/status/worker/workerRank", "value": 0},
        {"op": "add", "path": "/status/worker/sourceLoad", "value": 0.875},
    ]
    objects.patch(patch)
    (row,) = (await peer.listing()).instances
    assert (row.source_load, row.updated_at) == (0.875, before)
    await peer.update(source_id, status=STALE)
    with pytest.raises(urllib.error.HTTPError) as refused:
        objects.patch(patch)
    assert refused.value.code == 422
    refused.value.close()


async def test_one_object_that_cannot_be_read_harms_no_other(
    peer: Peer, objects: Objects, caplog: pytest.LogCaptureFixture
) -> None:
    await peer.ready("good", load=0.5)
    good = f"mx-source-{mx_source_id(IDENTITY)}-good"
    objects.create("half-published", "0123456789abcdef", "w2", None)
    objects.create("no-stamp", "0123456789abcdef", "w3", {"workerRank": 1, "status": "Ready"})
    objects.create("odd-status", "0123456789abcdef", "w4", {"workerRank": 1, "status": "Confused"})
    objects.create("bad-annotation", "0123456789abcdef", "w5", {"workerRank": 1, "status": "Ready"})
    objects.patch({"metadata": {"annotations": {"sourceload.dev/registration": "?"}}}, "bad-annotation", "")
    objects.create("unlabelled", "0123456789abcdef", "w6", {"workerRank": 1, "status": "Ready"})
    objects.patch({"metadata": {"labels": None}}, "unlabelled", "")
    assert await peer.ids(READY) == ["good"]
    assert sorted(await peer.ids(None)) == ["good", "w3", "w4"]
    assert await peer.loads(READY) == {"good": 0.5}
    complaints = [record.message for record in caplog.records if "left out" in record.message]
    assert len(complaints) == 1, "said once, not in every listing"
    assert "bad-annotation" in complaints[0]
    assert "unlabelled" in complaints[0]
    assert good not in complaints[0]


async def test_a_heartbeat_wins_over_writers_that_keep_changing_the_object(peer: Peer, objects: Objects) -> None:
    source_id = await peer.ready("w1", load=0.5)

    def other_writer() -> None:
        for number in range(40):
            objects.patch([{"op": "add", "path": "/status/observedGeneration", "value": number}])

    writing = asyncio.create_task(asyncio.to_thread(other_writer))
    for number in range(30):
        status = (READY, INITIALIZING)[number % 2]
        assert (await peer.update(source_id, status=status, load=number / 32)).success
        assert await peer.loads(status) == {"w1": number / 32}
    await writing


# -- large and impossible ---------------------------------------------------------------------------------------------


async def test_metadata_too_large_for_an_object_is_refused_by_name_and_harms_nobody(peer: Peer) -> None:
    await peer.ready("small", load=0.5)
    numbers = random.Random(1)
    too_large: dict[str, dict[str, Any]] = {
        "worker.nixl_metadata": {"nixl_metadata": bytes(3_000_000)},
        "worker.tensor_source": {
            "tensors": [TensorDescriptor(name=numbers.randbytes(100).hex()) for _ in range(15_000)]
        },
        "worker.topology": {"topology": {f"key{n}": "v" * 200 for n in range(2000)}},
        "identity": {"identity": SourceIdentity(model_name="m", extra_parameters={"k": "v" * 300_000})},
    }
    for worker_id in ("small", "large"):
        for field, fields in too_large.items():
            answer = await peer.try_publish(worker_id, **fields)
            assert not answer.success
            assert answer.message.startswith(f"{field} is too large")
    assert await peer.loads(READY) == {"small": 0.5}
    assert await peer.ids(None) == ["small"]


@pytest.mark.parametrize("count", [6_000, 100_000])
async def test_a_large_model_fits(peer: Peer, count: int) -> None:
    tensors = [
        TensorDescriptor(name=f"model.layers.{n // 800}.mlp.experts.{n % 800}.down_proj.weight", addr=2**46 + n, size=n)
        for n in range(count)
    ]
    source_id = await peer.publish("w1", tensors=tensors)
    answer = await peer.stub.GetMetadata(GetMetadataRequest(mx_source_id=source_id, worker_id="w1"))
    assert list(answer.worker.tensor_source.tensors) == tensors


async def test_an_artifact_has_no_tensors(peer: Peer, objects: Objects) -> None:
    await peer.publish("w1", artifact_source=ArtifactSourceMetadata(artifact_id="a", total_size=2**62))
    worker = objects.get()["status"]["worker"]
    assert worker["artifactSource"]["totalSize"] == 2**62
    assert "tensorConfigMap" not in worker


async def test_a_list_of_tensors_that_is_gone_is_not_answered_as_half_a_model(
    peer: Peer, api_server: ApiServer, namespace: Kubernetes
) -> None:
    source_id = await peer.publish("w1", tensors=TENSORS)
    api_server.kubectl("delete", "configmap", "-n", namespace.namespace, f"{NAME}-tensors-worker-0")
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await peer.stub.GetMetadata(GetMetadataRequest(mx_source_id=source_id, worker_id="w1"))
    assert failed.value.code() is grpc.StatusCode.UNAVAILABLE
