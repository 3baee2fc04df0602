"""From records to response messages: rows in the wanted dialect, and a worker with its tensors in both places.

Called by `service` and, for what a registration shows in a listing, by every backend.
"""

from __future__ import annotations

from collections.abc import Iterable

from mx_server.core.records import Registration, Row
from mx_wire import (
    Dialect,
    GetMetadataResponse,
    ListSourcesResponse,
    SourceInstanceRef,
    SourceStatus,
    set_load,
)


def head(registration: Registration) -> SourceInstanceRef:
    """The part of a listing's row that a registration decides."""
    worker, parameters = registration.worker, registration.identity.extra_parameters
    return SourceInstanceRef(
        mx_source_id=registration.source_id,
        worker_id=registration.worker_id,
        model_name=registration.identity.model_name,
        worker_rank=worker.worker_rank,
        accelerator=worker.accelerator,
        training_step=_step(parameters.get("training_step") or parameters.get("version") or ""),
        layout_signature=parameters.get("layout_signature") or None,
        topology=worker.topology,
    )


def _step(text: str) -> int | None:
    """A training step as trainers publish it: a decimal number that fits into 64 bits, else no step."""
    if not (text.isascii() and text.isdigit()):
        return None
    step = int(text) if len(text) <= 20 else 2**64
    return step if step < 2**64 else None


def listing(rows: Iterable[Row], dialect: Dialect, keeps_load: bool = True) -> ListSourcesResponse:
    """A ListSources answer.

    Args:
        rows: In the order to send them.
        dialect: DRAFT leaves `updated_at` out, whose number that draft used for the load.
        keeps_load: False answers like a server from before the field.
    """
    response = ListSourcesResponse()
    for row in rows:
        instance = response.instances.add()
        instance.CopyFrom(row.head)
        if dialect is not Dialect.DRAFT:
            instance.updated_at = row.updated_at
        if keeps_load and row.load is not None:
            set_load(instance, row.load, dialect)
    return response


def found(registration: Registration, status: int, updated_at: int) -> GetMetadataResponse:
    """A GetMetadata answer, with the row's present status and stamp.

    The worker's tensors are sent in the old field as well, for readers that know only that.
    """
    worker = registration.worker
    response = GetMetadataResponse(
        found=True,
        mx_source_id=registration.source_id,
        worker_id=registration.worker_id,
        worker=worker,
        identity=registration.identity,
    )
    response.worker.status = SourceStatus.ValueType(status)
    response.worker.updated_at = updated_at
    if worker.WhichOneof("source_payload") == "tensor_source":
        response.worker.tensors.extend(worker.tensor_source.tensors)
    return response
