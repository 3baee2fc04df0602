"""The operator's nouns: frozen values between the seams (MX server, Prometheus, Kubernetes) and the decisions.

Times named `*_ms` are an MX server's wall clock in milliseconds; all others are seconds of this process' monotonic
clock. Durations are seconds.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import Final, NamedTuple

#: Worker r of a pod serves its metadata at this port plus its device's index (`MX_WORKER_GRPC_PORT`'s default).
BASE_PORT: Final = 6555
_MOST_DEVICES: Final = 64


class SourceKey(NamedTuple):
    """What identifies a source on one MX server: an mx_source_id can have many workers.

    A tuple, because it is hashed some hundred thousand times a cycle in a large fleet.
    """

    mx_source_id: str
    worker_id: str


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """One row of ListSources(READY).

    Attributes:
        key: Which source.
        worker_rank: Copied into every write for it.
        model_name: What policies choose by.
        updated_at_ms: 0 where the server's rows carry none.
        load: As stored, bit for bit the wire's float32; None where absent.
    """

    key: SourceKey
    worker_rank: int
    model_name: str
    updated_at_ms: int
    load: float | None


@dataclasses.dataclass(frozen=True, slots=True)
class Listing:
    """One answer of ListSources(READY) that was not empty: an empty one may be a server's swallowed error.

    Attributes:
        sent_at: When it was asked for; nothing in it is older news than that.
        received_at: When it was here.
        rows: Each key once.
    """

    sent_at: float
    received_at: float
    rows: tuple[Row, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Identity:
    """Where a worker can be reached and which pod it is, as far as known: what series are joined by."""

    host: str | None = None
    device: int | None = None
    pod_name: str | None = None
    pod_namespace: str | None = None
    pod_uid: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Sample:
    """One series of one signal, as one query answered it.

    Attributes:
        labels: Of the series, without the ones the query added.
        value: Raw: may be NaN or infinite.
        age: Of the sample when Prometheus evaluated the query, on Prometheus' own clock.
    """

    labels: dict[str, str]
    value: float
    age: float


@dataclasses.dataclass(frozen=True, slots=True)
class Write:
    """One UpdateStatus(READY) to send, and until when.

    Attributes:
        key: Which source.
        worker_rank: As the row of this cycle has it.
        load: Marked; in (0, 1).
        nonce: Of the mark.
        send_before: The end of the row's window; after it this write must not be sent.
        answer_before: When its call must be over: the window's end and the grace after it.
        policy: On whose behalf.
        reason: `load`, `neutral` or `decayed`.
        model_name: Of the row, for whoever shows it.
    """

    key: SourceKey
    worker_rank: int
    load: float
    nonce: int
    send_before: float
    answer_before: float
    policy: str
    reason: str = "load"
    model_name: str = ""


class Result(enum.Enum):
    """What became of a write."""

    ACCEPTED = "accepted"
    REFUSED = "refused"  # answered with success=false: the row is gone, the rank is not its, or the backend failed
    DENIED = "denied"  # UNAUTHENTICATED or PERMISSION_DENIED
    FAILED = "failed"  # any other error: nobody knows whether it was stored
    UNSENT = "unsent"  # its time, or the cycle's, ran out before it was sent


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """A write and its end.

    Attributes:
        write: What was sent.
        result: How it ended.
        sent_at: When it was sent.
        ended_at: When the answer, or the decision to wait no longer, was there.
        detail: The server's words or the status code, where it did not go well.
        stored: Whether the answer itself showed the load as stored; None where answers do not show it.
    """

    write: Write
    result: Result
    sent_at: float
    ended_at: float
    detail: str = ""
    stored: bool | None = None


def device_of_port(port: int) -> int | None:
    """The device whose worker listens on `port` by default; None for any other port."""
    device = port - BASE_PORT
    return device if 0 <= device < _MOST_DEVICES else None
