"""Workers as ModelMetadata objects in a Kubernetes namespace: shared by any number of replicas and by NVIDIA's server.

Opened by `mx_server.backends.opening`. A heartbeat that changes no status is one conditional patch, without reading
first: the API server itself refuses it if rank or status are others. Replicas stamp by the API server's clock.
"""

from __future__ import annotations

import asyncio
import zlib
from typing import Any, Final

from mx_server.backends import kube_objects, kube_sizes
from mx_server.clocks import Clock
from mx_server.core import answers
from mx_server.core.records import Listing, Outcome, Registration, Row, StatusUpdate, Verdict
from mx_server.errors import ApiError, BackendUnavailable, RegistrationRefused
from mx_server.kube_client import APPLY, JSON_PATCH, MERGE_PATCH, KubeClient
from mx_server.logs import Seldom, log
from mx_wire import GetMetadataResponse, SourceStatus, TensorDescriptor

_TRIES: Final = 5
_APPLY: Final = {"fieldManager": "mx-server", "force": "true"}
# What no repetition helps against: the object itself is refused.
_REFUSED: Final = frozenset({400, 413, 422})


class KubernetesBackend:
    """See Backend.

    Args:
        client: How to reach the API server.
        namespace: Where the objects are.
        clock: Milliseconds since 1970; the client's, which is the API server's, when None.
    """

    name = "kubernetes"

    def __init__(self, client: KubeClient, namespace: str, clock: Clock | None = None) -> None:
        self._client = client
        self._namespace = namespace
        self._clock = clock or client.clock
        self._objects = f"/apis/{kube_objects.API_VERSION}/namespaces/{namespace}/modelmetadatas"
        self._config_maps = f"/api/v1/namespaces/{namespace}/configmaps"
        self._seldom = Seldom()
        self._unreadable: frozenset[str] = frozenset()

    async def publish(self, registration: Registration) -> None:
        """Store a worker anew: its object, its tensors, then the status that makes it a row."""
        data = await asyncio.to_thread(kube_sizes.tensors_data, registration)
        # Before anything is written: what was published before must not be left half replaced.
        if (reason := kube_sizes.too_large(registration, data)) is not None:
            raise RegistrationRefused(reason)
        name = kube_objects.object_name(registration.source_id, registration.worker_id)
        for _ in range(_TRIES):
            try:
                await self._publish(name, registration, data)
                return
            except ApiError as error:
                if error.code in _REFUSED:
                    raise RegistrationRefused(f"worker: the API server refuses it: {error}") from error
                # Conflicting writers (409), or forgotten by a replica between our requests (404): once more.
                last = error
        raise BackendUnavailable(f"publishing {name}: {last}") from last

    async def _publish(self, name: str, registration: Registration, data: kube_objects.Object) -> None:
        uid = await self._created(name, kube_objects.manifest(registration, self._namespace))
        if registration.worker.tensor_source.tensors:
            config_map = kube_sizes.tensors_map(registration, uid, data)
            path = f"{self._config_maps}/{config_map['metadata']['name']}"
            await self._client.request("PATCH", path, config_map, content=APPLY, query=_APPLY)
        await self._patch(name, kube_objects.announced(registration, self._clock()))

    async def _created(self, name: str, manifest: kube_objects.Object) -> str:
        """Create the object, or renew it; its uid."""
        path = f"{self._objects}/{name}"
        try:
            created = await self._client.request("POST", self._objects, manifest)
            await self._client.request("PATCH", path, kube_objects.UNTRACKED, content=JSON_PATCH)
        except ApiError as error:
            if error.code != 409:
                raise
            created = await self._client.request("PATCH", path, kube_objects.renewal(manifest), content=MERGE_PATCH)
        return str(created["metadata"]["uid"])

    async def update(self, update: StatusUpdate) -> Outcome:
        """Set status and load."""
        name = kube_objects.object_name(update.source_id, update.worker_id)
        patch = kube_objects.heartbeat(update.rank, update.status, update.load, self._clock())
        for _ in range(_TRIES):
            try:
                stored = await self._patch(name, patch)
                self._check_field(update, stored)
                return Outcome(Verdict.APPLIED)
            except ApiError as error:
                last = error
            found = None if last.code == 404 else await self._found(name)
            if found is None:
                return Outcome(Verdict.NO_WORKER)
            rank = found["status"]["worker"].get("workerRank")
            if rank != update.rank:
                return Outcome(Verdict.OTHER_RANK, rank)
            patch = kube_objects.transition(found, update.status, update.load, self._clock())
        raise BackendUnavailable(f"updating {name}: {last}") from last

    async def listing(self, source_id: str | None) -> Listing:
        """The rows of one source, or of all."""
        query = {} if source_id is None else {"labelSelector": f"{kube_objects.SOURCE_LABEL}={source_id}"}
        answer = await self._ask("GET", self._objects, query=query)
        rows, unreadable = kube_objects.rows(answer["items"])
        self._complain(frozenset(unreadable))
        return Listing(self._clock(), tuple(rows))

    async def fetch(self, source_id: str, worker_id: str) -> GetMetadataResponse | None:
        """Everything about one worker."""
        name = kube_objects.object_name(source_id, worker_id)
        found = await self._found(name)
        if found is None:
            return None
        try:
            row = kube_objects.row(found)
            registration = kube_objects.registration(found, await self._tensors(found))
        except (KeyError, TypeError, ValueError, zlib.error) as error:
            raise BackendUnavailable(f"object {name} cannot be read: {error!r}") from error
        assert row is not None
        return answers.found(registration, row.status, row.updated_at)

    async def expire(self, row: Row) -> bool:
        """Mark a row STALE if unchanged."""
        name = kube_objects.object_name(row.head.mx_source_id, row.head.worker_id)
        found = await self._found(name)
        if found is None:
            return False
        since = kube_objects.unchanged_since(_version(row)[1])
        stale = kube_objects.transition(found, SourceStatus.SOURCE_STATUS_STALE, None, self._clock())
        return await self._done(self._patch(name, since + stale))

    async def forget(self, row: Row) -> bool:
        """Delete a worker if unchanged; its tensors go with it, being owned by it."""
        name = kube_objects.object_name(row.head.mx_source_id, row.head.worker_id)
        options = {"preconditions": {"resourceVersion": _version(row)[0]}, "propagationPolicy": "Background"}
        return await self._done(self._client.request("DELETE", f"{self._objects}/{name}", options))

    async def check(self) -> None:
        """List one object: the server, the kind, the namespace and our rights are all needed for that."""
        await self._ask("GET", self._objects, query={"limit": "1"})

    async def close(self) -> None:
        """Close the client's connections."""
        await self._client.close()

    async def _found(self, name: str) -> dict[str, Any] | None:
        """The object, if it is there and has a worker."""
        try:
            found = await self._client.request("GET", f"{self._objects}/{name}")
        except ApiError as error:
            if error.code == 404:
                return None
            raise BackendUnavailable(f"reading {name}: {error}") from error
        return found if (found.get("status") or {}).get("worker") else None

    async def _tensors(self, found: dict[str, Any]) -> list[TensorDescriptor]:
        """The worker's tensors; a missing or short list is no answer, since a target would read half a model."""
        worker = found["status"]["worker"]
        name, expected = worker.get("tensorConfigMap"), worker.get("tensorCount", 0)
        if not name or not expected:
            return []
        config_map = await self._ask("GET", f"{self._config_maps}/{name}")
        tensors = kube_sizes.tensors(config_map)
        if len(tensors) != expected:
            raise BackendUnavailable(f"ConfigMap {name} lists {len(tensors)} tensors of {expected}")
        return tensors

    async def _patch(self, name: str, patch: kube_objects.Patch) -> dict[str, Any]:
        return await self._client.request("PATCH", f"{self._objects}/{name}/status", patch, content=JSON_PATCH)

    async def _ask(self, method: str, path: str, *, query: dict[str, str] | None = None) -> dict[str, Any]:
        """A request that only an incomplete installation is refused."""
        try:
            return await self._client.request(method, path, query=query)
        except ApiError as error:
            raise BackendUnavailable(f"API server answered {error.code}: {error}") from error

    async def _done(self, request: Any) -> bool:
        """Whether a conditional change took place; not, where the object changed or is gone."""
        try:
            await request
        except ApiError as error:
            if error.code in (404, 409, 422):
                return False
            raise BackendUnavailable(f"API server answered {error.code}: {error}") from error
        return True

    def _check_field(self, update: StatusUpdate, stored: dict[str, Any]) -> None:
        """Say when the installed definition drops the load, as one from an old chart does without a word."""
        if update.load is not None and "sourceLoad" not in stored["status"]["worker"]:
            self._seldom.warning(
                "sourceLoad",
                "the cluster's definition of ModelMetadata has no sourceLoad and drops it: update it (--print-crd)",
            )

    def _complain(self, unreadable: frozenset[str]) -> None:
        """Say once, not in every listing, which objects are left out."""
        if new := unreadable - self._unreadable:
            log.warning("left out of listings, since they cannot be read: %s", ", ".join(sorted(new)))
        self._unreadable = unreadable


def _version(row: Row) -> tuple[str, str]:
    assert isinstance(row.version, tuple)
    return row.version
