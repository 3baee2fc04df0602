"""The Kubernetes writer on a real API server and the embedded server: the load changes and nothing else does."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import pathlib
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import kopf
import pytest
import yaml

import mx_wire
from mx_lab.processes import Process, free_port
from mx_operator.core.marks import mark
from mx_operator.core.model import SourceKey, Write
from mx_operator.loop.fleet import Fleet as Loops
from mx_operator.mx.errors import DeniedError, RefusedError
from mx_operator.mx.objects import WithObjects, name_of
from mx_operator.mx.servers import GrpcServer
from mx_operator.policies.spec import Server, Writer
from mx_operator.prometheus.clients import HttpSignal
from tests.operator.parts.fleet import READY
from tests.operator.parts.prometheus_http import fake_prometheus, says
from tests.operator.parts.running import HEARTBEAT, Recorder, cycles, policy, until
from tests.parts.kubernetes import ADMIN_TOKEN, ApiServer

pytestmark = pytest.mark.tools("etcd", "kube-apiserver")

NAMESPACE = "mx-writer-tests"
OBJECTS = f"/apis/modelexpress.nvidia.com/v1alpha1/namespaces/{NAMESPACE}/modelmetadatas"
RULES = pathlib.Path(__file__).parents[3] / "charts" / "mx-source-load" / "rbac" / "operator.yaml"
BIN = pathlib.Path(sys.executable).parent
STALE = mx_wire.SourceStatus.SOURCE_STATUS_STALE


def crd() -> dict[str, Any]:
    printed = subprocess.run([BIN / "mx-server", "--print-crd"], capture_output=True, text=True, check=True).stdout
    loaded: dict[str, Any] = yaml.safe_load(printed)
    return loaded


def without_load(definition: dict[str, Any]) -> dict[str, Any]:
    """The definition of an older chart, which `helm upgrade` leaves in place."""
    older = copy.deepcopy(definition)
    status = older["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]
    del status["properties"]["worker"]["properties"]["sourceLoad"]
    return older


@pytest.fixture(scope="module")
def token(api_server: ApiServer) -> str:
    """The operator's account, with exactly what the chart grants for this writer."""
    account = api_server.service_account(NAMESPACE, "mx-operator")
    api_server.apply([crd()])
    group = "rbac.authorization.k8s.io"
    head = {"apiVersion": f"{group}/v1", "metadata": {"name": "mx-writer", "namespace": NAMESPACE}}
    subject = {"kind": "ServiceAccount", "name": "mx-operator", "namespace": NAMESPACE}
    rules = yaml.safe_load(RULES.read_text())
    role = {"apiGroup": group, "kind": "Role", "name": "mx-writer"}
    binding = {**head, "kind": "RoleBinding", "subjects": [subject], "roleRef": role}
    api_server.apply([{**head, "kind": "Role", "rules": rules["owners"] + rules["writer"]}, binding])
    return account


class Fleet:
    """Sources on an embedded server with the Kubernetes backend, and its objects."""

    def __init__(self, api: ApiServer, address: str, stub: Any) -> None:
        self.api, self.address, self.stub = api, address, stub

    async def add(self, worker: str) -> SourceKey:
        identity = mx_wire.SourceIdentity(model_name="m", mx_version="1")
        metadata = mx_wire.WorkerMetadata(worker_rank=2, worker_grpc_endpoint="10.0.0.1:6555")
        request = mx_wire.PublishMetadataRequest(identity=identity, worker=metadata, worker_id=worker)
        answer = await self.stub.PublishMetadata(request)
        return SourceKey(answer.mx_source_id, answer.worker_id)

    async def say(self, key: SourceKey, status: Any = READY) -> None:
        request = mx_wire.UpdateStatusRequest(
            mx_source_id=key.mx_source_id, worker_id=key.worker_id, worker_rank=2, status=status
        )
        assert (await self.stub.UpdateStatus(request)).success

    async def row(self, key: SourceKey) -> Any:
        answer = await self.stub.ListSources(mx_wire.ListSourcesRequest(status_filter=READY))
        return next((row for row in answer.instances if row.worker_id == key.worker_id), None)

    def worker(self, key: SourceKey) -> dict[str, Any]:
        found: dict[str, Any] = self.api.request("GET", f"{OBJECTS}/{name_of(key)}")["status"]["worker"]
        return found


@contextlib.asynccontextmanager
async def served(api: ApiServer, folder: pathlib.Path) -> AsyncIterator[Fleet]:
    port, secret = free_port(), folder / "admin-token"
    secret.write_text(ADMIN_TOKEN)
    command: list[str | pathlib.Path] = [BIN / "mx-server", "--listen", f"127.0.0.1:{port}"]
    command += ["--backend", "kubernetes", "--namespace", NAMESPACE, "--kube-api-server", api.url]
    command += ["--kube-token-file", secret, "--kube-ca-file", api.ca_file]
    with Process("mx-server", command, folder / "server.log") as process:
        process.wait_ready(lambda: "listening" in process.output)
        async with mx_wire.aio_channel(f"127.0.0.1:{port}") as channel:
            yield Fleet(api, f"127.0.0.1:{port}", mx_wire.aio_stub(channel))


@contextlib.asynccontextmanager
async def writer(api: ApiServer, token: str, address: str) -> AsyncIterator[WithObjects]:
    settings = Server(address, writer=Writer.KUBERNETES, namespace=NAMESPACE)
    access = kopf.ConnectionInfo(server=api.url, ca_path=str(api.ca_file), token=token)
    seam = WithObjects(GrpcServer(settings), settings, lambda: access)
    try:
        yield seam
    finally:
        await seam.close()


def write(key: SourceKey, load: float = 0.77, rank: int = 2) -> Write:
    return Write(key, rank, mark(load, 5), 5, 1e9, 1e9, "p")


async def test_the_load_changes_bit_for_bit_and_the_stamp_does_not(
    api_server: ApiServer, token: str, tmp_path: pathlib.Path
) -> None:
    async with served(api_server, tmp_path) as fleet, writer(api_server, token, fleet.address) as seam:
        key = await fleet.add("plain")
        await fleet.say(key)
        before = await fleet.row(key)
        assert await seam.write(write(key), 2.0) is True
        after = await fleet.row(key)
        assert mx_wire.read_load(after) == mark(0.77, 5)
        assert after.updated_at == before.updated_at
        stored = fleet.worker(key)
        assert {name for name in stored if name != "sourceLoad"} >= {"status", "updatedAt", "workerRank"}


async def test_what_is_not_ready_or_another_rank_or_gone_is_refused(
    api_server: ApiServer, token: str, tmp_path: pathlib.Path
) -> None:
    async with served(api_server, tmp_path) as fleet, writer(api_server, token, fleet.address) as seam:
        key = await fleet.add("refused")
        with pytest.raises(RefusedError):
            await seam.write(write(key), 2.0)  # INITIALIZING or unknown
        await fleet.say(key)
        with pytest.raises(RefusedError):
            await seam.write(write(key, rank=0), 2.0)
        await fleet.say(key, STALE)
        with pytest.raises(RefusedError):
            await seam.write(write(key), 2.0)
        with pytest.raises(RefusedError):
            await seam.write(write(SourceKey(key.mx_source_id, "nobody")), 2.0)
        assert fleet.worker(key).get("sourceLoad") is None


async def test_without_the_right_to_patch_the_fix_is_named(
    api_server: ApiServer, token: str, tmp_path: pathlib.Path
) -> None:
    stranger = api_server.service_account(NAMESPACE, "stranger")
    async with served(api_server, tmp_path) as fleet, writer(api_server, stranger, fleet.address) as seam:
        key = await fleet.add("denied")
        await fleet.say(key)
        with pytest.raises(DeniedError, match="grant patch on modelmetadatas/status"):
            await seam.write(write(key), 2.0)


async def test_a_definition_without_the_field_is_noticed_by_the_answer(
    api_server: ApiServer, token: str, tmp_path: pathlib.Path
) -> None:
    async with served(api_server, tmp_path) as fleet, writer(api_server, token, fleet.address) as seam:
        key = await fleet.add("pruned")
        await fleet.say(key)
        api_server.apply([without_load(crd())])
        try:
            await until_async(lambda: seam.write(write(key), 2.0), False)
        finally:
            api_server.apply([crd()])
        await until_async(lambda: seam.write(write(key), 2.0), True)


async def until_async(ask: Any, expected: bool) -> None:
    for _ in range(100):
        if await ask() is expected:
            return
        await asyncio.sleep(0.1)
    raise AssertionError(f"never {expected}")


async def test_the_owner_says_which_pod_a_worker_is(api_server: ApiServer, token: str, tmp_path: pathlib.Path) -> None:
    async with served(api_server, tmp_path) as fleet, writer(api_server, token, fleet.address) as seam:
        key = await fleet.add("owned")
        await fleet.say(key)
        owner = {"apiVersion": "v1", "kind": "Pod", "name": "llama-0", "uid": "0b0e6fd2", "controller": False}
        patch = {"metadata": {"ownerReferences": [owner]}}
        api_server.request("PATCH", f"{OBJECTS}/{name_of(key)}", patch, content="application/merge-patch+json")
        found = await seam.identity(key)
        assert found is not None
        assert (found.pod_name, found.pod_namespace, found.pod_uid) == ("llama-0", NAMESPACE, "0b0e6fd2")


@pytest.fixture
def no_stretching(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mx_operator.core.pacing._STRETCH", 0.0)


async def test_a_dead_source_is_never_kept_alive_and_a_live_one_is_restored_after_each_heartbeat(
    api_server: ApiServer, token: str, tmp_path: pathlib.Path, no_stretching: None
) -> None:
    access = kopf.ConnectionInfo(server=api_server.url, ca_path=str(api_server.ca_file), token=token)
    recorder = Recorder()
    async with served(api_server, tmp_path) as fleet:
        key = await fleet.add("looped")
        await fleet.say(key)
        stamp = (await fleet.row(key)).updated_at
        loops = Loops(lambda s: WithObjects(GrpcServer(s), s, lambda: access), HttpSignal, recorder, recorder)
        with fake_prometheus(says({"10.0.0.1": 0.7})) as prometheus:
            server = Server(fleet.address, writer=Writer.KUBERNETES, namespace=NAMESPACE)
            loops.apply([policy(fleet.address, prometheus.url, server=server)])
            try:
                await until(lambda: recorder.reports and recorder.last.counts.written, "the first write")
                row = await fleet.row(key)
                assert round(mx_wire.read_load(row) or -1, 2) == 0.7
                assert row.updated_at == stamp, "no heartbeat was needed, and none was faked"
                await fleet.say(key)
                await cycles(recorder, 3)
                assert round(mx_wire.read_load(await fleet.row(key)) or -1, 2) == 0.7
                last = (await fleet.row(key)).updated_at
                end = asyncio.get_running_loop().time() + 1.5 * HEARTBEAT
                turn = 0
                while asyncio.get_running_loop().time() < end:
                    turn += 1
                    prometheus.answer_with(says({"10.0.0.1": turn % 2}))
                    await asyncio.sleep(0.3)
                assert (await fleet.row(key)).updated_at == last
                assert recorder.last.load_supported.ok
            finally:
                await loops.close()
