"""What one cycle found out about one policy: made by the loop, shown by status, metrics, logs and `mx-operator plan`.

Everything in a report is of this one cycle; whoever shows it damps what would flap (a condition turns only after
several cycles say the same), because decisions must not wait for that and displays must.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True, slots=True)
class Check:
    """The answer of this cycle to one yes-or-no question.

    Attributes:
        ok: None where this cycle could not tell.
        reason: One CamelCase word, as Kubernetes conditions have it.
        message: One line for a person, naming the fix where it is not ok.
    """

    ok: bool | None
    reason: str
    message: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Counts:
    """Sources of a policy in this cycle.

    Attributes:
        listed: READY on the server and meant by the policy; the sum of the five states and `conflicting`.
        matched: With a fresh and finite reading.
        unmatched: No series is theirs, or it cannot be told which pod they are.
        ambiguous: More than one series, or more than one rank or pod, could be theirs.
        stale: The newest sample is older than `staleAfter`.
        invalid: The sample is NaN or infinite.
        conflicting: Another policy with precedence means them too.
        wanted: Of the matched, those whose stored load differs by more than the deadband.
        written: Writes that the server accepted.
        failed: Writes that it refused, or that got no answer.
        clamped: Of the matched, those whose reading was outside [0, 1].
        would_write: In mode observe, what mode write would have sent.
    """

    listed: int = 0
    matched: int = 0
    unmatched: int = 0
    ambiguous: int = 0
    stale: int = 0
    invalid: int = 0
    conflicting: int = 0
    wanted: int = 0
    written: int = 0
    failed: int = 0
    clamped: int = 0
    would_write: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class PolicyReport:
    """One policy, one cycle.

    Attributes:
        policy: The policy's name.
        uid: Of the custom resource; empty in file mode.
        generation: Of the spec this cycle ran with (status.observedGeneration).
        at: Unix seconds, this process' wall clock; for display only.
        prometheus: PrometheusReachable.
        server: ServerReachable.
        load_supported: LoadSupported: does the server store what it is sent.
        data_fresh: DataFresh.
        heartbeat: Does the interval seen agree with `sourceHeartbeat` (None while too few were seen).
        counts: Numbers of sources.
        skips: Why listed sources were not written, by reason.
        signal_ages: Age in seconds of the newest sample of each signal that answered.
        heartbeat_interval: Median of the intervals seen, in seconds.
        clock_skew: Seconds between the clocks of the server's replicas, as far as seen.
        duration: Seconds this cycle took.
        source_heartbeat: The policy's own word for that interval, in seconds.
    """

    policy: str
    uid: str
    generation: int
    at: float
    prometheus: Check
    server: Check
    load_supported: Check
    data_fresh: Check
    heartbeat: Check
    counts: Counts
    skips: Mapping[str, int]
    signal_ages: Mapping[str, float]
    heartbeat_interval: float | None
    clock_skew: float | None
    duration: float
    source_heartbeat: float | None = None

    @property
    def stale_ratio(self) -> float:
        """Share of the listed sources whose newest sample is too old; 0 where none are listed."""
        return self.counts.stale / self.counts.listed if self.counts.listed else 0.0
