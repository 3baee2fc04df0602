"""What the server speaks of, as plain frozen records: between the wire on one side and the stores on the other.

Built by `requests` from messages and by `backends` from what is stored; judged by `rules`; turned back into messages
by `answers`. Nothing here does I/O or reads a clock.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Hashable, Mapping
from typing import Final

from mx_wire import SourceIdentity, SourceInstanceRef, SourceStatus, WorkerMetadata

#: How each SourceStatus is written outside the wire: in Kubernetes objects, and in lower case in metrics.
STATUS_NAMES: Final[Mapping[int, str]] = {
    number: name.removeprefix("SOURCE_STATUS_").capitalize() for name, number in SourceStatus.items()
}


@dataclasses.dataclass(frozen=True, slots=True)
class Pod:
    """The pod a worker says it runs in, for an owner reference on Kubernetes."""

    name: str
    uid: str
    namespace: str


@dataclasses.dataclass(frozen=True, slots=True)
class Registration:
    """A worker as PublishMetadata announced it.

    Attributes:
        source_id: The identity's 16 hexadecimal digits.
        worker_id: The worker's own name for this process.
        identity: As sent.
        worker: As sent, its tensors in `tensor_source` only; `updated_at` means nothing here.
        pod: None unless name, uid and namespace were all sent.
    """

    source_id: str
    worker_id: str
    identity: SourceIdentity
    worker: WorkerMetadata
    pod: Pod | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class StatusUpdate:
    """One UpdateStatus, checked: `load` is None or in [0, 1], and None where the status is STALE."""

    source_id: str
    worker_id: str
    rank: int
    status: int
    load: float | None


@dataclasses.dataclass(frozen=True, slots=True)
class Wanted:
    """Which rows a ListSources asked for; None asks for any."""

    source_id: str | None = None
    status: int | None = None
    model_name: str | None = None
    rank: int | None = None
    min_training_step: int | None = None
    min_updated_at: int | None = None
    limit: int | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """One worker as a listing knows it.

    Attributes:
        head: What changes with a registration only: ids, model name, rank, accelerator, training step, layout
            signature, topology. Shared between listings: never write to it.
        status: A SourceStatus number.
        updated_at: Milliseconds since 1970 by the backend's clock, of the last accepted registration or update.
        load: The stored `source_load`; None is "no reading".
        version: What the backend compares to know that the row is still as it was read.
    """

    head: SourceInstanceRef
    status: int
    updated_at: int
    load: float | None
    version: Hashable


@dataclasses.dataclass(frozen=True, slots=True)
class Listing:
    """Every row of a source, or of all, as of `taken_at` (milliseconds, on the clock that stamps the rows)."""

    taken_at: int
    rows: tuple[Row, ...]


class Verdict(enum.Enum):
    """How a backend took an update."""

    APPLIED = "applied"
    NO_WORKER = "no_worker"
    OTHER_RANK = "other_rank"


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """The verdict on an update, and the worker's own rank where it was another than the update's."""

    verdict: Verdict
    rank: int | None = None
