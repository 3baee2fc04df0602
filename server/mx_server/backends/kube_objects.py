"""Between records and Kubernetes objects, both ways, as pure functions on parsed JSON.

Called by `kubernetes`. The objects are the upstream server's ModelMetadata and ConfigMap, field by field, so that
either server and any tool reads the other's. What that kind has no field for (the identity, the topology, a worker id
that cannot be a label) travels in one annotation, which survives every version of the definition.
"""

from __future__ import annotations

import base64
import binascii
import datetime
import hashlib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from google.protobuf.message import DecodeError

from mx_server.core import answers
from mx_server.core.records import STATUS_NAMES, Registration, Row
from mx_wire import (
    ArtifactSourceMetadata,
    MxSourceType,
    PublishMetadataRequest,
    SourceIdentity,
    SourceInstanceRef,
    SourceStatus,
    TensorDescriptor,
    WorkerMetadata,
)

GROUP: Final = "modelexpress.nvidia.com"
API_VERSION: Final = f"{GROUP}/v1alpha1"
SOURCE_LABEL: Final = f"{GROUP}/mx-source-id"
WORKER_LABEL: Final = f"{GROUP}/mx-worker-id"
ANNOTATION: Final = "sourceload.dev/registration"

Object = dict[str, Any]
Patch = list[dict[str, Any]]

_PLAIN: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)*")
_HASHED: Final = re.compile(r"x[0-9a-f]{40}")
_STATUS_NUMBERS: Final = {name: number for number, name in STATUS_NAMES.items()}
_WORKER: Final = "/status/worker"


# -- names ----------------------------------------------------------------------------------------------------------


def worker_label(worker_id: str) -> str:
    """The worker id where it can be a label and part of a name, as the released client's are; else its hash."""
    if len(worker_id) <= 63 and _PLAIN.fullmatch(worker_id) and not _HASHED.fullmatch(worker_id):
        return worker_id
    return f"x{hashlib.sha256(worker_id.encode()).hexdigest()[:40]}"


def object_name(source_id: str, worker_id: str) -> str:
    """The ModelMetadata object's name."""
    return f"mx-source-{source_id}-{worker_label(worker_id)}"


def tensors_name(registration: Registration) -> str:
    """The ConfigMap's name for the worker's tensors."""
    name = object_name(registration.source_id, registration.worker_id)
    return f"{name}-tensors-worker-{registration.worker.worker_rank}"


# -- to Kubernetes --------------------------------------------------------------------------------------------------


def manifest(registration: Registration, namespace: str) -> Object:
    """A new object, without a status. The pod owns it where it lives in the same namespace."""
    pod = registration.pod
    metadata: Object = {
        "name": object_name(registration.source_id, registration.worker_id),
        "labels": {SOURCE_LABEL: registration.source_id, WORKER_LABEL: worker_label(registration.worker_id)},
        "annotations": {ANNOTATION: annotation(registration)},
    }
    if pod is not None and pod.namespace == namespace:
        owner = {"apiVersion": "v1", "kind": "Pod", "name": pod.name, "uid": pod.uid, "controller": False}
        metadata["ownerReferences"] = [owner]
    spec = {"modelName": registration.identity.model_name, "sourceType": _source_type(registration.identity)}
    return {"apiVersion": API_VERSION, "kind": "ModelMetadata", "metadata": metadata, "spec": spec}


#: Forget who wrote which field. The API server's record of that is half of such an object, and without it listings
#: take half the time and heartbeats two thirds (measured); once forgotten, updates do not bring it back.
UNTRACKED: Final[Patch] = [{"op": "replace", "path": "/metadata/managedFields", "value": [{}]}]


def renewal(made: Object) -> Object:
    """The merge patch that makes an object that is there equal to the one `made` for a create."""
    metadata = {name: made["metadata"].get(name) for name in ("labels", "annotations", "ownerReferences")}
    return {"metadata": {**metadata, "managedFields": [{}]}, "spec": made["spec"]}


def annotation(registration: Registration) -> str:
    """What the kind has no field for, packed into text."""
    kept = PublishMetadataRequest(
        identity=registration.identity,
        worker_id=registration.worker_id,
        worker=WorkerMetadata(topology=registration.worker.topology),
    )
    return base64.b64encode(kept.SerializeToString()).decode()


def _source_type(identity: SourceIdentity) -> str:
    kind = identity.mx_source_type
    if kind not in MxSourceType.values():
        return "unknown"
    return MxSourceType.Name(kind).removeprefix("MX_SOURCE_TYPE_").lower()


def status(registration: Registration, now: int) -> Object:
    """The whole status of a worker that has just announced itself: no load, stamped `now`."""
    worker, tensors = registration.worker, registration.worker.tensor_source.tensors
    fields: Object = {
        "workerRank": worker.worker_rank,
        "backendType": _backend_type(worker),
        "nixlMetadata": base64.b64encode(worker.nixl_metadata).decode(),
        "tensorCount": len(tensors),
        "metadataEndpoint": worker.metadata_endpoint,
        "agentName": worker.agent_name,
        "workerGrpcEndpoint": worker.worker_grpc_endpoint,
        "accelerator": worker.accelerator,
        "status": STATUS_NAMES[worker.status],
        "updatedAt": timestamp(now),
    }
    if worker.transfer_engine_session_id:
        fields["transferEngineSessionId"] = worker.transfer_engine_session_id
    if tensors:
        fields["tensorConfigMap"] = tensors_name(registration)
    if worker.WhichOneof("source_payload") == "artifact_source":
        fields["artifactSource"] = _artifact(worker.artifact_source)
    return {"worker": fields, "publishedAt": timestamp(now), "conditions": conditions(worker.status, now, None)}


def _backend_type(worker: WorkerMetadata) -> str:
    kinds = {"nixl_metadata": "nixl", "transfer_engine_session_id": "transfer_engine"}
    return kinds.get(worker.WhichOneof("backend_metadata") or "", "none")


def _artifact(artifact: ArtifactSourceMetadata) -> Object:
    return {
        "artifactId": artifact.artifact_id,
        "totalSize": artifact.total_size,
        "fileCount": artifact.file_count,
        "chunkCount": artifact.chunk_count,
        "nodeRank": artifact.node_rank,
    }


def conditions(number: int, now: int, before: Sequence[Mapping[str, Any]] | None) -> list[Object]:
    """The Ready condition for a status, with the time of the last transition kept where there was none."""
    ready = number == SourceStatus.SOURCE_STATUS_READY
    condition: Object = {
        "type": "Ready",
        "status": "True" if ready else "False",
        "reason": f"Worker{STATUS_NAMES[number]}",
        "message": "The worker can be read from" if ready else "The worker cannot be read from",
        "lastTransitionTime": timestamp(now),
    }
    others: list[Object] = []
    for old in before or ():
        if old.get("type") != "Ready":
            others.append(dict(old))
        elif old.get("status") == condition["status"] and old.get("lastTransitionTime"):
            condition["lastTransitionTime"] = old["lastTransitionTime"]
    return [*others, condition]


def announced(registration: Registration, now: int) -> Patch:
    """The patch that replaces the status whole."""
    return [_set("/status", status(registration, now))]


def heartbeat(rank: int, number: int, load: float | None, now: int) -> Patch:
    """An update of a worker whose rank and status are as they are: one request, refused (422) if they are not."""
    return [*_expect(rank, number), _set(f"{_WORKER}/updatedAt", timestamp(now)), *_set_load(load)]


def transition(found: Mapping[str, Any], number: int, load: float | None, now: int) -> Patch:
    """An update that changes the status of the worker as it was `found` (a whole object)."""
    worker = found["status"]["worker"]
    before = found["status"].get("conditions")
    return [
        *_expect(worker["workerRank"], worker.get("status")),
        _set(f"{_WORKER}/status", STATUS_NAMES[number]),
        _set(f"{_WORKER}/updatedAt", timestamp(now)),
        *_set_load(load),
        _set("/status/conditions", conditions(number, now, before)),
    ]


def _expect(rank: int, status: int | str | None) -> Patch:
    expected = STATUS_NAMES[status] if isinstance(status, int) else status
    tests = {"workerRank": rank} | ({"status": expected} if expected is not None else {})
    return [{"op": "test", "path": f"{_WORKER}/{name}", "value": value} for name, value in tests.items()]


def unchanged_since(stamp: str) -> Patch:
    """A test that no heartbeat came since `stamp` was read."""
    return [{"op": "test", "path": f"{_WORKER}/updatedAt", "value": stamp}]


def _set(path: str, value: object) -> dict[str, Any]:
    return {"op": "add", "path": path, "value": value}


def _set_load(load: float | None) -> Patch:
    path = f"{_WORKER}/sourceLoad"
    # "remove" alone is refused where there is nothing to remove.
    return [_set(path, load)] if load is not None else [_set(path, 0), {"op": "remove", "path": path}]


# -- from Kubernetes ------------------------------------------------------------------------------------------------


def row(found: Mapping[str, Any]) -> Row | None:
    """The listing's row of an object; None while it has no worker, or where it is not one of ours in form."""
    worker = (found.get("status") or {}).get("worker")
    if not worker:
        return None
    metadata = found["metadata"]
    kept = _kept(metadata)
    if kept is not None:
        registration = Registration(_label(metadata, SOURCE_LABEL), kept.worker_id, kept.identity, kept.worker)
        head = answers.head(registration)
    else:
        head = SourceInstanceRef(
            mx_source_id=_label(metadata, SOURCE_LABEL),
            worker_id=_label(metadata, WORKER_LABEL),
            model_name=found["spec"]["modelName"],
        )
    head.worker_rank, head.accelerator = worker["workerRank"], worker.get("accelerator") or ""
    stamp = worker.get("updatedAt") or ""
    number = _STATUS_NUMBERS.get(worker.get("status", ""), 0)
    return Row(head, number, milliseconds(stamp), _load(worker), (metadata["resourceVersion"], stamp))


def rows(found: Iterable[Mapping[str, Any]]) -> tuple[list[Row], list[str]]:
    """The rows of some objects, and the names of those that could not be read; one bad object harms no other."""
    good: list[Row] = []
    bad: list[str] = []
    for each in found:
        try:
            if (one := row(each)) is not None:
                good.append(one)
        except (KeyError, TypeError, ValueError, AttributeError):
            bad.append(str(each.get("metadata", {}).get("name", "?")))
    return good, bad


def registration(found: Mapping[str, Any], tensors: Iterable[TensorDescriptor]) -> Registration:
    """The registration of an object with a worker.

    Raises:
        KeyError, TypeError, ValueError: The object is not of the kind's form.
    """
    metadata, worker = found["metadata"], found["status"]["worker"]
    kept = _kept(metadata) or PublishMetadataRequest(worker_id=_label(metadata, WORKER_LABEL))
    built = WorkerMetadata(
        worker_rank=worker["workerRank"],
        metadata_endpoint=worker.get("metadataEndpoint") or "",
        agent_name=worker.get("agentName") or "",
        worker_grpc_endpoint=worker.get("workerGrpcEndpoint") or "",
        accelerator=worker.get("accelerator") or "",
        topology=kept.worker.topology,
    )
    _read_backend(worker, built)
    if artifact := worker.get("artifactSource"):
        built.artifact_source.CopyFrom(_read_artifact(artifact))
    else:
        built.tensor_source.tensors.extend(tensors)
        built.tensor_source.SetInParent()
    identity = kept.identity if kept.HasField("identity") else SourceIdentity(model_name=found["spec"]["modelName"])
    return Registration(_label(metadata, SOURCE_LABEL), kept.worker_id, identity, built)


def _read_backend(worker: Mapping[str, Any], built: WorkerMetadata) -> None:
    """Which transfer the worker offers; objects from before `backendType` show it by what they have."""
    nixl, session = worker.get("nixlMetadata") or "", worker.get("transferEngineSessionId") or ""
    kind = worker.get("backendType") or ("transfer_engine" if session else "nixl" if nixl else "none")
    if kind == "transfer_engine":
        built.transfer_engine_session_id = session
    elif kind == "nixl":
        built.nixl_metadata = base64.b64decode(nixl, validate=True)


def _read_artifact(artifact: Mapping[str, Any]) -> ArtifactSourceMetadata:
    return ArtifactSourceMetadata(
        artifact_id=artifact["artifactId"],
        total_size=artifact.get("totalSize", 0),
        file_count=artifact.get("fileCount", 0),
        chunk_count=artifact.get("chunkCount", 0),
        node_rank=artifact.get("nodeRank", 0),
    )


def _kept(metadata: Mapping[str, Any]) -> PublishMetadataRequest | None:
    text = (metadata.get("annotations") or {}).get(ANNOTATION)
    if text is None:
        return None
    try:
        return PublishMetadataRequest.FromString(base64.b64decode(text, validate=True))
    except (binascii.Error, DecodeError) as error:
        raise ValueError(f"annotation {ANNOTATION}: {error}") from error


def _label(metadata: Mapping[str, Any], name: str) -> str:
    return str(metadata["labels"][name])


def _load(worker: Mapping[str, Any]) -> float | None:
    """The stored load; others write these objects too, so what is no number is none and the rest is clamped."""
    load = worker.get("sourceLoad")
    if not isinstance(load, int | float) or isinstance(load, bool) or not math.isfinite(load):
        return None
    return min(1.0, max(0.0, float(load)))


def timestamp(milliseconds: int) -> str:
    """RFC 3339 in UTC, with milliseconds."""
    moment = datetime.datetime.fromtimestamp(milliseconds / 1000, datetime.UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def milliseconds(stamp: str) -> int:
    """Milliseconds since 1970 of an RFC 3339 time; 0, which is never fresh, where it is none."""
    try:
        moment = datetime.datetime.fromisoformat(stamp)
        return round(moment.timestamp() * 1000) if moment.tzinfo is not None else 0
    except (ValueError, OverflowError):
        return 0
