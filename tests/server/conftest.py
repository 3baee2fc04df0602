"""The three backends as one parameter: `store` opens as many servers on one fresh store as a test wants."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.resources
import itertools
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from mx_server.app import Server
from mx_server.backends import Backend
from mx_server.backends.opening import opened
from mx_server.settings import Kubernetes, Settings
from mx_wire import (
    AsyncP2pServiceStub,
    ListSourcesRequest,
    ListSourcesResponse,
    PublishMetadataRequest,
    PublishMetadataResponse,
    SourceIdentity,
    SourceStatus,
    TensorDescriptor,
    UpdateStatusRequest,
    UpdateStatusResponse,
    WorkerMetadata,
    aio_channel,
    aio_stub,
    mx_source_id,
)
from tests.parts.kubernetes import ADMIN_TOKEN, ApiServer
from tests.parts.redis import RedisServer, redis_server

_numbers = itertools.count()

CRD = "modelmetadatas.modelexpress.nvidia.com"
UNKNOWN, INITIALIZING, READY, STALE = SourceStatus.values()
IDENTITY = SourceIdentity(mx_version="0.7.0", model_name="a-model", tensor_parallel_size=1, dtype="bfloat16")
#: What the Kubernetes backend calls the object of IDENTITY's worker w1, and a list of tensors at the edges.
NAME = f"mx-source-{mx_source_id(IDENTITY)}-w1"
TENSORS = [TensorDescriptor(name="t", addr=2**63 + 1, size=2**40, device_id=1, dtype="bfloat16")]


class Peer:
    """A client in the words of a test."""

    def __init__(self, stub: AsyncP2pServiceStub) -> None:
        self.stub = stub

    async def publish(
        self, worker_id: str = "w1", rank: int = 0, identity: SourceIdentity = IDENTITY, **worker: Any
    ) -> str:
        """Publish a worker; its source id."""
        answer = await self.try_publish(worker_id, rank, identity, **worker)
        assert answer.success, answer.message
        return answer.mx_source_id

    async def try_publish(
        self, worker_id: str = "w1", rank: int = 0, identity: SourceIdentity = IDENTITY, **worker: Any
    ) -> PublishMetadataResponse:
        pod = {name: worker.pop(name) for name in ("pod_name", "pod_uid", "pod_namespace") if name in worker}
        metadata = WorkerMetadata(worker_rank=rank, **worker)
        request = PublishMetadataRequest(identity=identity, worker=metadata, worker_id=worker_id, **pod)
        return await self.stub.PublishMetadata(request)

    async def update(
        self,
        source_id: str,
        worker_id: str = "w1",
        rank: int = 0,
        status: SourceStatus.ValueType = READY,
        load: float | None = None,
    ) -> UpdateStatusResponse:
        request = UpdateStatusRequest(
            mx_source_id=source_id, worker_id=worker_id, worker_rank=rank, status=status, source_load=load
        )
        return await self.stub.UpdateStatus(request)

    async def ready(self, worker_id: str = "w1", rank: int = 0, load: float | None = None, **more: Any) -> str:
        """Publish a worker and make it READY; its source id."""
        source_id = await self.publish(worker_id, rank, **more)
        answer = await self.update(source_id, worker_id, rank, READY, load)
        assert answer.success, answer.message
        return source_id

    async def listing(self, status: SourceStatus.ValueType | None = READY, **wanted: Any) -> ListSourcesResponse:
        return await self.stub.ListSources(ListSourcesRequest(status_filter=status, **wanted))

    async def ids(self, status: SourceStatus.ValueType | None = READY, **wanted: Any) -> list[str]:
        """The listed worker ids, in order."""
        return [row.worker_id for row in (await self.listing(status, **wanted)).instances]

    async def loads(self, status: SourceStatus.ValueType | None = READY) -> dict[str, float | None]:
        """The listed loads by worker id; None where the field is absent."""
        rows = (await self.listing(status)).instances
        return {row.worker_id: row.source_load if row.HasField("source_load") else None for row in rows}


@dataclasses.dataclass
class Store:
    """A fresh store of one kind, and servers on it."""

    kind: str
    settings: Settings
    _opened: list[Backend] = dataclasses.field(default_factory=list)

    async def backend(self) -> Backend:
        """A backend of its own on this store, as another replica has; the memory backend has only itself."""
        if self.kind != "memory" or not self._opened:
            self._opened.append(await opened(self.settings))
        return self._opened[-1]

    async def close(self) -> None:
        for backend in self._opened:
            await backend.close()

    @contextlib.asynccontextmanager
    async def server(self, **changes: Any) -> AsyncIterator[tuple[Server, Peer]]:
        """A server on this store, with a client."""
        settings = dataclasses.replace(self.settings, **changes)
        async with Server(settings, await self.backend()) as server, aio_channel(server.address) as channel:
            yield server, Peer(aio_stub(channel))

    @contextlib.asynccontextmanager
    async def peer(self, **changes: Any) -> AsyncIterator[Peer]:
        async with self.server(**changes) as (_, peer):
            yield peer


@pytest.fixture(scope="session")
def shared_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """One real Redis for all tests that do not stop it."""
    with redis_server(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(scope="session")
def cluster(api_server: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Kubernetes:
    """The API server with the kind of MX servers installed, seen by an administrator."""
    manifest = importlib.resources.files("mx_server").joinpath("manifests", "modelmetadatas.yaml").read_text()
    api_server.apply(manifest)
    token = tmp_path_factory.mktemp("admin") / "token"
    token.write_text(ADMIN_TOKEN)
    api_server.kubectl("wait", "--for=condition=Established", "--timeout=10s", "crd", CRD)
    return Kubernetes("", api_server.url, token, api_server.ca_file)


@pytest.fixture
def namespace(cluster: Kubernetes, api_server: ApiServer) -> Kubernetes:
    """A namespace of one test's own."""
    name = f"mx-{next(_numbers)}"
    api_server.request("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    return dataclasses.replace(cluster, namespace=name)


_KINDS = (
    "memory",
    "redis",
    pytest.param("kubernetes", marks=pytest.mark.tools("etcd", "kube-apiserver")),
)


@pytest.fixture(params=_KINDS)
async def store(request: pytest.FixtureRequest) -> AsyncIterator[Store]:
    """Each backend in turn, empty."""
    store = _store(request.param, request)
    yield store
    await store.close()


@pytest.fixture(params=_KINDS[1:])
async def shared_store(request: pytest.FixtureRequest) -> AsyncIterator[Store]:
    """Each backend that replicas can share, empty."""
    store = _store(request.param, request)
    yield store
    await store.close()


def _store(kind: str, request: pytest.FixtureRequest) -> Store:
    # Scans are asked for by the tests that want them.
    common = Settings(listen="127.0.0.1:0", reaper_interval=3600)
    if kind == "redis":
        redis: RedisServer = request.getfixturevalue("shared_redis")
        prefix = f"t{next(_numbers)}"
        return Store(kind, dataclasses.replace(common, backend=kind, redis_url=redis.url, redis_prefix=prefix))
    if kind == "kubernetes":
        place: Kubernetes = request.getfixturevalue("namespace")
        return Store(kind, dataclasses.replace(common, backend=kind, kubernetes=place))
    return Store(kind, common)


@contextlib.asynccontextmanager
async def serving(settings: Settings) -> AsyncIterator[Server]:
    """A server from settings alone."""
    async with Server(settings) as server:
        yield server


def kubernetes_settings(place: Kubernetes, backend_timeout: float = 5) -> Settings:
    """A server on the cluster, which scans only when told to."""
    return Settings(
        listen="127.0.0.1:0",
        backend="kubernetes",
        kubernetes=place,
        reaper_interval=3600,
        backend_timeout=backend_timeout,
    )
