"""MX's Kubernetes backend, seen from the side of its objects: a writer without any effect on liveness.

Where the server keeps its rows as ModelMetadata objects, one JSON patch changes the load and nothing else: `test`
operations make it one atomic step with the checks that the source is Ready and that the rank is its, so there is no
race to lose and no `updatedAt` to refresh. The objects also say which pod owns a worker, which tells pods apart that
share an address.
"""

from __future__ import annotations

import http
from typing import Any, Final

from mx_operator.core.model import Identity, Row, SourceKey, Write
from mx_operator.kubernetes.access import Access, AccessError, detect
from mx_operator.kubernetes.api import Api, ApiError
from mx_operator.mx.errors import DeniedError, MxError, RefusedError
from mx_operator.mx.servers import MxServer
from mx_operator.policies.spec import Server, Writer

_OBJECTS: Final = "/apis/modelexpress.nvidia.com/v1alpha1/namespaces/{namespace}/modelmetadatas"
_JSON_PATCH: Final = "application/json-patch+json"
_DENIED: Final = (http.HTTPStatus.UNAUTHORIZED, http.HTTPStatus.FORBIDDEN)
#: Not there any more, or a test operation failed: not Ready, or another rank.
_REFUSED: Final = (http.HTTPStatus.NOT_FOUND, http.HTTPStatus.UNPROCESSABLE_ENTITY)


class Objects(Api):
    """The ModelMetadata objects of one namespace."""

    def __init__(self, access: Access, namespace: str) -> None:
        super().__init__(access, timeout=2.0)
        self._path = _OBJECTS.format(namespace=namespace)

    async def get(self, key: SourceKey) -> dict[str, Any]:
        """One worker's object.

        Raises:
            ApiError: There is none, or no answer.
        """
        return await self._request("GET", f"{self._path}/{name_of(key)}")

    async def patch(self, key: SourceKey, operations: list[dict[str, Any]]) -> dict[str, Any]:
        """Patch one worker's status; the object as it is then.

        Raises:
            ApiError: It was not patched.
        """
        path = f"{self._path}/{name_of(key)}/status"
        return await self._request("PATCH", path, operations, content=_JSON_PATCH)


def name_of(key: SourceKey) -> str:
    """How MX calls a worker's object."""
    return f"mx-source-{key.mx_source_id}-{key.worker_id}"


class WithObjects:
    """A server whose objects can be reached, too; an `MxServer`."""

    def __init__(self, server: MxServer, settings: Server, access: Access = detect) -> None:
        """Put the objects beside the server.

        Args:
            server: Lists, and writes where the policy's writer is gRPC.
            settings: With the namespace of the objects.
            access: Where to get credentials for the API server.
        """
        assert settings.namespace is not None
        self._server, self._writes_objects = server, settings.writer is Writer.KUBERNETES
        self._objects = Objects(access, settings.namespace)

    async def list_ready(self, deadline: float, worker_rank: int | None = None) -> list[Row]:
        """See `MxServer`."""
        return await self._server.list_ready(deadline, worker_rank)

    async def identity(self, key: SourceKey) -> Identity | None:
        """See `MxServer`; with the pod that owns the worker, where it has one."""
        found = await self._server.identity(key)
        owner = None if found is None else await self._owner(key)
        if found is None or owner is None:
            return found
        return Identity(found.host, found.device, owner.pod_name, owner.pod_namespace, owner.pod_uid)

    async def _owner(self, key: SourceKey) -> Identity | None:
        try:
            return owner_of(await self._objects.get(key))
        except AccessError as error:
            raise MxError("NoCluster", str(error)) from error
        except ApiError as error:
            if error.code in (http.HTTPStatus.NOT_FOUND, http.HTTPStatus.FORBIDDEN):
                return None  # another backend, or not granted: addresses have to do
            raise _translated(error) from error

    async def write(self, write: Write, deadline: float) -> bool | None:
        """See `MxServer`; the answer shows whether the schema of the objects knows the load."""
        if not self._writes_objects:
            return await self._server.write(write, deadline)
        try:
            patched = await self._objects.patch(write.key, operations(write))
        except AccessError as error:
            raise DeniedError("NoCluster", str(error)) from error
        except ApiError as error:
            raise _translated(error) from error
        worker = (patched.get("status") or {}).get("worker") or {}
        return worker.get("sourceLoad") is not None

    async def reconnect(self) -> None:
        """See `MxServer`."""
        await self._server.reconnect()

    async def close(self) -> None:
        """See `MxServer`."""
        await self._objects.__aexit__()
        await self._server.close()


def operations(write: Write) -> list[dict[str, Any]]:
    """The JSON patch of a write: only while it is Ready and that rank's, only the load."""
    return [
        {"op": "test", "path": "/status/worker/status", "value": "Ready"},
        {"op": "test", "path": "/status/worker/workerRank", "value": write.worker_rank},
        {"op": "add", "path": "/status/worker/sourceLoad", "value": write.load},
    ]


def owner_of(resource: dict[str, Any]) -> Identity | None:
    """The pod that owns an object; None where it has no such owner, or several."""
    metadata = resource.get("metadata") or {}
    pods = [owner for owner in metadata.get("ownerReferences") or [] if owner.get("kind") == "Pod"]
    if len(pods) != 1:
        return None
    return Identity(pod_name=pods[0].get("name"), pod_namespace=metadata.get("namespace"), pod_uid=pods[0].get("uid"))


def _translated(error: ApiError) -> MxError:
    if error.code in _REFUSED:
        return RefusedError("Refused", str(error))
    if error.code in _DENIED:
        return DeniedError("Forbidden", f"{error}; grant patch on modelmetadatas/status")
    return MxError("ApiServer", str(error))
