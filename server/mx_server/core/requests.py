"""From a request message to a record, or to the one sentence that says which field is wrong and why.

Called by `service` before a backend is asked anything. Pure: the same message gives the same answer.
"""

from __future__ import annotations

import dataclasses
import math
import re
from typing import Final

from mx_server.core.records import Pod, Registration, StatusUpdate, Wanted
from mx_wire import (
    GetMetadataRequest,
    ListSourcesRequest,
    PublishMetadataRequest,
    SourceStatus,
    TensorSourceMetadata,
    UpdateStatusRequest,
    WorkerMetadata,
    mx_source_id,
)

#: Signed 32 and 64 bits are what the Kubernetes objects have room for; no backend takes what another would refuse.
_MAX_RANK: Final = 2**31 - 1
_MAX_SIZE: Final = 2**63 - 1
_MAX_ID: Final = 253
_SOURCE_ID: Final = re.compile(r"[0-9a-f]{16}")
_STATUSES: Final = frozenset(SourceStatus.values())


@dataclasses.dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request is not carried out; starts with the field's name."""

    message: str


def registration(request: PublishMetadataRequest) -> Registration | Refusal:
    """Check a PublishMetadata."""
    if not request.HasField("identity"):
        return Refusal("identity is required")
    if not request.identity.model_name:
        return Refusal("identity.model_name is required")
    if not request.HasField("worker"):
        return Refusal("worker is required")
    refusal = _bad_worker_id(request.worker_id) or _bad_worker(request.worker)
    if refusal is not None:
        return refusal
    return Registration(
        source_id=mx_source_id(request.identity),
        worker_id=request.worker_id,
        identity=request.identity,
        worker=without_copies(request.worker),
        pod=_pod(request),
    )


def _bad_worker_id(worker_id: str) -> Refusal | None:
    if not worker_id:
        return Refusal("worker_id is required")
    if len(worker_id) > _MAX_ID:
        return Refusal(f"worker_id is {len(worker_id)} characters long; at most {_MAX_ID} are taken")
    return None


def _bad_worker(worker: WorkerMetadata) -> Refusal | None:
    if worker.worker_rank > _MAX_RANK:
        return Refusal(f"worker.worker_rank {worker.worker_rank} is above {_MAX_RANK}")
    if worker.status not in _STATUSES:
        return Refusal(f"worker.status {worker.status} is not a SourceStatus")
    if worker.artifact_source.total_size > _MAX_SIZE:
        return Refusal(f"worker.artifact_source.total_size {worker.artifact_source.total_size} is above {_MAX_SIZE}")
    return None


def _pod(request: PublishMetadataRequest) -> Pod | None:
    if request.pod_name and request.pod_uid and request.pod_namespace:
        return Pod(request.pod_name, request.pod_uid, request.pod_namespace)
    return None


def without_copies(worker: WorkerMetadata) -> WorkerMetadata:
    """The worker with its tensors in one place, `tensor_source`.

    Publishers write them twice, for servers from before `tensor_source`; stored once, they take half the room.
    `answers.worker` writes them twice again.
    """
    slim = WorkerMetadata()
    slim.CopyFrom(worker)
    if slim.WhichOneof("source_payload") is None:
        slim.tensor_source.CopyFrom(TensorSourceMetadata(tensors=worker.tensors))
    slim.ClearField("tensors")
    slim.ClearField("updated_at")
    return slim


def status_update(request: UpdateStatusRequest) -> StatusUpdate | Refusal:
    """Check an UpdateStatus; a finite load is clamped to [0, 1], and STALE carries none."""
    if not request.mx_source_id:
        return Refusal("mx_source_id is required")
    if not request.worker_id:
        return Refusal("worker_id is required")
    if request.status not in _STATUSES:
        return Refusal(f"status {request.status} is not a SourceStatus")
    load = request.source_load if request.HasField("source_load") else None
    if load is not None and not math.isfinite(load):
        return Refusal(f"source_load {load} is not a finite number; leave the field out where there is no reading")
    if request.status == SourceStatus.SOURCE_STATUS_STALE:
        load = None
    return StatusUpdate(
        request.mx_source_id,
        request.worker_id,
        request.worker_rank,
        request.status,
        None if load is None else min(1.0, max(0.0, load)),
    )


def wanted(request: ListSourcesRequest) -> Wanted | Refusal:
    """Check a ListSources.

    An identity without a model name asks for any source and a limit of 0 for any number, as in the upstream server.
    A status number that does not exist is refused: "any status" is not what its sender meant.
    """
    status = request.status_filter if request.HasField("status_filter") else None
    if status is not None and status not in _STATUSES:
        return Refusal(f"status_filter {status} is not a SourceStatus")
    return Wanted(
        source_id=mx_source_id(request.identity) if request.identity.model_name else None,
        status=status,
        model_name=request.model_name_filter if request.HasField("model_name_filter") else None,
        rank=request.worker_rank_filter if request.HasField("worker_rank_filter") else None,
        min_training_step=request.min_training_step if request.HasField("min_training_step") else None,
        min_updated_at=request.min_updated_at if request.HasField("min_updated_at") else None,
        limit=request.limit if request.limit else None,
    )


def worker_key(request: GetMetadataRequest) -> tuple[str, str] | Refusal:
    """Check a GetMetadata; gives source id and worker id."""
    if not request.mx_source_id:
        return Refusal("mx_source_id is required")
    if not request.worker_id:
        return Refusal("worker_id is required")
    return request.mx_source_id, request.worker_id


def known_form(source_id: str) -> bool:
    """Whether this can be a source id at all; what can't needs no look-up, and no room in a path or a key."""
    return _SOURCE_ID.fullmatch(source_id) is not None
