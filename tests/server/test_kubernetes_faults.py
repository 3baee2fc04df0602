"""The rights that the Kubernetes backend needs and no others, and an API server that hangs, dies or lacks the kind."""

from __future__ import annotations

import asyncio
import os
import pathlib
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

import grpc
import pytest
import yaml

from mx_server.backends.kubernetes import KubernetesBackend
from mx_server.cli import crd
from mx_server.errors import BackendUnavailable
from mx_server.kube_client import KubeClient
from mx_server.settings import Kubernetes
from mx_wire import (
    GetMetadataRequest,
    aio_channel,
    aio_stub,
)
from tests.parts import kubernetes
from tests.parts.kubernetes import ADMIN_TOKEN, ApiServer
from tests.server.conftest import CRD, STALE, TENSORS, Peer, kubernetes_settings, serving

pytestmark = pytest.mark.tools("etcd", "kube-apiserver")

_T = TypeVar("_T")


# -- rights -----------------------------------------------------------------------------------------------------------

ROLE = """
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: mx-server, namespace: NAMESPACE}
rules:
  - apiGroups: [modelexpress.nvidia.com]
    resources: [modelmetadatas]
    verbs: [get, list, create, patch, delete]
  - apiGroups: [modelexpress.nvidia.com]
    resources: [modelmetadatas/status]
    verbs: [patch]
  - apiGroups: [""]
    resources: [configmaps]
    verbs: [get, create, patch]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: mx-server, namespace: NAMESPACE}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: mx-server}
subjects: [{kind: ServiceAccount, name: mx-server, namespace: NAMESPACE}]
"""


async def test_the_documented_role_is_enough_and_nothing_in_it_is_unused(
    api_server: ApiServer, namespace: Kubernetes, tmp_path: pathlib.Path
) -> None:
    name = namespace.namespace
    documented = pathlib.Path(__file__).parents[2].joinpath("docs", "server.md").read_text()
    for line in yaml.safe_load_all(ROLE.split("---", maxsplit=1)[0]):
        for rule in line["rules"]:
            assert f"verbs: [{', '.join(rule['verbs'])}]" in documented
    token = tmp_path / "token"
    token.write_text(api_server.service_account(name, "mx-server"))
    place = Kubernetes(name, namespace.server, token, namespace.ca_file)
    with pytest.raises(BackendUnavailable, match="403"):
        async with serving(kubernetes_settings(place)):
            pass
    api_server.apply(ROLE.replace("NAMESPACE", name))
    await _everything(place)
    user = f"system:serviceaccount:{name}:mx-server"
    # The first refusal, before the role was there, is the only one.
    codes = [event["responseStatus"]["code"] for event in api_server.audit(user)]
    assert codes.count(403) == 1
    used = {
        (event["objectRef"]["resource"] + "/" * bool(sub := event["objectRef"].get("subresource")) + (sub or ""), verb)
        for event in api_server.audit(user)
        for verb in [event["verb"]]
        if event["responseStatus"]["code"] < 300
    }
    granted = {
        (resource, verb)
        for rule in yaml.safe_load(ROLE.split("---", maxsplit=1)[0])["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    # Server-side apply is a patch that also needs "create" for objects that are not there yet.
    assert granted - used == {("configmaps", "create")}
    assert used <= granted


async def _everything(place: Kubernetes) -> None:
    async with serving(kubernetes_settings(place)) as server, aio_channel(server.address) as channel:
        peer = Peer(aio_stub(channel))
        source_id = await peer.ready("w1", tensors=TENSORS)
        await peer.update(source_id, load=0.5)
        await peer.update(source_id, status=STALE)
        await peer.listing()
        await peer.stub.GetMetadata(GetMetadataRequest(mx_source_id=source_id, worker_id="w1"))
        backend = KubernetesBackend(KubeClient(place), place.namespace)
        try:
            (row,) = (await backend.listing(None)).rows
            assert await backend.expire(row)
            (row,) = (await backend.listing(None)).rows
            assert await backend.forget(row)
        finally:
            await backend.close()


# -- a cluster that fails ---------------------------------------------------------------------------------------------


@pytest.fixture
def own_api_server(tmp_path: pathlib.Path) -> Iterator[ApiServer]:
    """An API server that this test may stop."""
    with kubernetes.api_server(tmp_path / "apiserver") as server:
        server.apply(crd())
        server.kubectl("wait", "--for=condition=Established", "--timeout=10s", "crd", CRD)
        yield server


async def test_an_api_server_that_hangs_or_dies_is_unavailable_and_everything_is_there_when_it_is_back(
    own_api_server: ApiServer, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    token = tmp_path / "token"
    token.write_text(ADMIN_TOKEN)
    place = Kubernetes("default", own_api_server.url, token, own_api_server.ca_file)
    async with serving(kubernetes_settings(place, 2)) as server, aio_channel(server.address) as channel:
        peer = Peer(aio_stub(channel))
        source_id = await _soon(lambda: peer.ready("w1", load=0.5))
        assert own_api_server.server is not None
        os.kill(own_api_server.server.pid, signal.SIGSTOP)
        try:
            await _all_unavailable(peer, source_id)
        finally:
            os.kill(own_api_server.server.pid, signal.SIGCONT)
        assert set(await _soon(peer.loads)) == {"w1"}
        await asyncio.to_thread(own_api_server.stop_server)
        await _all_unavailable(peer, source_id)
        await asyncio.to_thread(own_api_server.start_server)
        assert (await _soon(lambda: peer.update(source_id, load=0.75))).success
        assert await _soon(peer.loads) == {"w1": 0.75}
        own_api_server.apply(crd().replace("sourceLoad:", "somethingElse:"))
        end = time.monotonic() + 15
        while "has no sourceLoad" not in caplog.text:
            assert (await _soon(lambda: peer.update(source_id, load=0.5))).success
            assert time.monotonic() < end, "nobody said that the load is dropped"
        assert await _soon(peer.loads) == {"w1": None}


async def _all_unavailable(peer: Peer, source_id: str) -> None:
    """Every call says UNAVAILABLE, and none waits much longer than the backend's timeout."""
    calls: list[Awaitable[object]] = [
        peer.listing(),
        peer.update(source_id),
        peer.publish("w2"),
        peer.stub.GetMetadata(GetMetadataRequest(mx_source_id=source_id, worker_id="w1")),
    ]
    started = time.monotonic()
    for failed in await asyncio.gather(*calls, return_exceptions=True):
        assert isinstance(failed, grpc.aio.AioRpcError)
        assert failed.code() is grpc.StatusCode.UNAVAILABLE
        assert "kubernetes backend" in (failed.details() or "")
    assert time.monotonic() - started < 4


async def _soon(call: Callable[[], Awaitable[_T]]) -> _T:
    """The answer once the API server has one: while it starts it says 429, and we UNAVAILABLE."""
    end = time.monotonic() + 30
    while True:
        try:
            return await call()
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.UNAVAILABLE or time.monotonic() > end:
                raise
        await asyncio.sleep(0.1)


async def test_without_the_kind_the_server_does_not_start(api_server: ApiServer, tmp_path: pathlib.Path) -> None:
    token = tmp_path / "token"
    token.write_text(ADMIN_TOKEN)
    client = KubeClient(Kubernetes("default", f"{api_server.url}/none", token, api_server.ca_file))
    backend = KubernetesBackend(client, "default")
    try:
        with pytest.raises(BackendUnavailable, match="40"):
            await backend.check()
    finally:
        await backend.close()
