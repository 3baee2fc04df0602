"""Requests to records: laws that hold for any message, and the sentences callers read."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mx_server.core import answers, requests
from mx_server.core.records import Registration, StatusUpdate, Wanted
from mx_wire import (
    ListSourcesRequest,
    PublishMetadataRequest,
    SourceIdentity,
    SourceStatus,
    TensorDescriptor,
    TensorSourceMetadata,
    UpdateStatusRequest,
    WorkerMetadata,
)

TENSORS = [TensorDescriptor(name="a", addr=1, size=2), TensorDescriptor(name="b")]


def _update(**fields: object) -> UpdateStatusRequest:
    return UpdateStatusRequest(**({"mx_source_id": "f" * 16, "worker_id": "w", "status": 2} | fields))  # type: ignore[arg-type]


@given(load=st.floats(width=32), status=st.sampled_from(SourceStatus.values()))
def test_an_update_carries_a_load_in_range_or_none_or_is_refused(load: float, status: int) -> None:
    answer = requests.status_update(_update(source_load=load, status=status))
    if not math.isfinite(load):
        assert isinstance(answer, requests.Refusal)
        assert answer.message.startswith("source_load")
        return
    assert isinstance(answer, StatusUpdate)
    if status == SourceStatus.SOURCE_STATUS_STALE:
        assert answer.load is None
    else:
        assert answer.load == min(1, max(0, load))


@given(status=st.integers(-(2**31), 2**31 - 1))
def test_only_known_statuses_pass_everywhere(status: int) -> None:
    known = status in SourceStatus.values()
    update = requests.status_update(_update(status=status))
    wanted = requests.wanted(ListSourcesRequest(status_filter=SourceStatus.ValueType(status)))
    worker = WorkerMetadata(status=SourceStatus.ValueType(status))
    published = requests.registration(
        PublishMetadataRequest(identity=SourceIdentity(model_name="m"), worker=worker, worker_id="w")
    )
    assert isinstance(update, StatusUpdate) == known
    assert isinstance(wanted, Wanted) == known
    assert isinstance(published, Registration) == known


@pytest.mark.parametrize(
    "worker",
    [
        WorkerMetadata(tensors=TENSORS),
        WorkerMetadata(tensor_source=TensorSourceMetadata(tensors=TENSORS)),
        WorkerMetadata(tensors=TENSORS[:1], tensor_source=TensorSourceMetadata(tensors=TENSORS)),
    ],
    ids=["old field", "new field", "both: the new one counts"],
)
def test_tensors_are_kept_once_and_answered_twice(worker: WorkerMetadata) -> None:
    slim = requests.without_copies(worker)
    assert not slim.tensors
    assert list(slim.tensor_source.tensors) == TENSORS
    answer = answers.found(Registration("f" * 16, "w", SourceIdentity(), slim), 2, 5)
    assert list(answer.worker.tensors) == list(answer.worker.tensor_source.tensors) == TENSORS


@pytest.mark.parametrize(
    ("parameters", "step"),
    [
        ({}, None),
        ({"training_step": "7"}, 7),
        ({"version": "8"}, 8),
        ({"training_step": "7", "version": "8"}, 7),
        ({"training_step": "18446744073709551615"}, 2**64 - 1),
        ({"training_step": "18446744073709551616"}, None),
        ({"training_step": "9" * 5000}, None),
        ({"training_step": "-1"}, None),
        ({"training_step": "1.5"}, None),
        ({"training_step": "٣"}, None),
        ({"training_step": "²"}, None),
    ],
)
def test_the_training_step_is_a_plain_number_of_64_bits_or_absent(parameters: dict[str, str], step: int | None) -> None:
    identity = SourceIdentity(model_name="m", extra_parameters=parameters)
    head = answers.head(Registration("f" * 16, "w", identity, WorkerMetadata()))
    assert (head.training_step if head.HasField("training_step") else None) == step


@pytest.mark.parametrize("missing", ["pod_name", "pod_uid", "pod_namespace"])
def test_a_pod_is_known_only_with_all_its_names(missing: str) -> None:
    request = PublishMetadataRequest(
        identity=SourceIdentity(model_name="m"),
        worker=WorkerMetadata(),
        worker_id="w",
        pod_name="p",
        pod_uid="u",
        pod_namespace="n",
    )
    whole = requests.registration(request)
    assert isinstance(whole, Registration)
    assert whole.pod is not None
    request.ClearField(missing)  # type: ignore[arg-type]
    partial = requests.registration(request)
    assert isinstance(partial, Registration)
    assert partial.pod is None
