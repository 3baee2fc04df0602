"""The operator's nouns: frozen values between the seams (MX server, Prometheus, Kubernetes) and the pure `plan`.

Times named `*_ms` are the MX server's wall clock; all others are seconds of this process' monotonic clock.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class SourceKey:
    """What identifies a source on one MX server: an mx_source_id can have many workers."""

    mx_source_id: str
    worker_id: str


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """One row of ListSources(READY)."""

    key: SourceKey
    worker_rank: int
    model_name: str
    updated_at_ms: int  # 0: the server's rows carry none
    load: float | None  # as stored, bit for bit the wire's float32; None where absent


@dataclasses.dataclass(frozen=True, slots=True)
class Identity:
    """Where a worker can be reached and which pod it is, as far as known: what series are joined by."""

    host: str | None  # of worker_grpc_endpoint or metadata_endpoint
    device: int | None  # port - 6555
    pod_name: str | None = None
    pod_namespace: str | None = None
    pod_uid: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Sample:
    """One series of one signal, as one query answered it."""

    labels: tuple[tuple[str, str], ...]
    value: float  # raw: may be NaN or infinite
    age: float  # seconds, on Prometheus' own clock


@dataclasses.dataclass(frozen=True, slots=True)
class Write:
    """One UpdateStatus(READY) to send, and until when."""

    key: SourceKey
    worker_rank: int
    load: float  # marked, or plain for the Kubernetes writer
    deadline: float
    policy: str
    reason: str = "load"
