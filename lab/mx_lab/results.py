"""What a run measured, and whether steering happened: pure functions of the choices and transfers seen."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence
from typing import Final

from mx_lab.fleet import Busy, Fleet
from mx_lab.settings import POLICIES
from mx_lab.targets import Choice, Transfer

#: At most this share of load-aware first choices may land on busy sources.
STEERED_SHARE: Final = 0.05
#: What contention adds to a transfer of 1 (6.66 in all), as ModelExpress' authors measured it.
PENALTY: Final = 5.66
#: Random choices must show that the busy sources could be chosen at all: within this of their fair share.
FAIR_TOLERANCE: Final = 0.05


@dataclasses.dataclass(frozen=True)
class Hop:
    """One station of a load's way from a counter to a score.

    Attributes:
        station: Where it was looked at.
        value: What was there; None where nothing was.
        age: Seconds since that value was made there; None where it carries no time.
        note: What is worth saying of it.
    """

    station: str
    value: float | None
    age: float | None
    note: str = ""


@dataclasses.dataclass(frozen=True)
class Evidence:
    """What was seen of the path itself; explains a verdict, never makes one."""

    rows: int
    rows_with_load: int
    series: int
    operator_running: bool
    exporters_running: int
    writes_accepted: float | None
    load_supported: float | None
    errors: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Times:
    """Transfer times of one policy, in seconds."""

    count: int
    mean: float
    p50: float
    p99: float


@dataclasses.dataclass(frozen=True)
class PolicyResult:
    """What one policy did."""

    policy: str
    starts: int
    chosen: int
    busy_share: float | None
    times: Times | None


@dataclasses.dataclass(frozen=True)
class Verdict:
    """Whether targets were steered away from busy sources, and why it is said."""

    steered: bool
    reasons: tuple[str, ...]


def policy_results(fleet: Fleet, choices: Sequence[Choice], transfers: Sequence[Transfer]) -> list[PolicyResult]:
    """One result for each policy."""
    busy = {source.name for source in fleet if source.busy is not Busy.NO}
    results = []
    for policy in POLICIES:
        of_policy = [choice for choice in choices if choice.policy == policy]
        chosen = [choice.source for choice in of_policy if choice.source is not None]
        share = sum(source in busy for source in chosen) / len(chosen) if chosen else None
        seconds = [transfer.seconds for transfer in transfers if transfer.policy == policy]
        results.append(PolicyResult(policy, len(of_policy), len(chosen), share, _times(seconds)))
    return results


def _times(seconds: list[float]) -> Times | None:
    if not seconds:
        return None
    ordered = sorted(seconds)
    p99 = ordered[min(len(ordered) - 1, math.ceil(0.99 * len(ordered)) - 1)]
    return Times(len(ordered), statistics.mean(ordered), statistics.median(ordered), p99)


def judge(results: Sequence[PolicyResult], busy_share: float, evidence: Evidence) -> Verdict:
    """The verdict follows the measured shares and nothing else; the evidence only says why they are as they are."""
    by_policy = {result.policy: result for result in results}
    aware, blind = by_policy["load_aware"], by_policy["random"]
    failures = []
    if aware.chosen < 0.95 * aware.starts or not aware.chosen:
        failures.append(f"only {aware.chosen} of {aware.starts} target starts found a source")
    if aware.busy_share is not None and aware.busy_share > STEERED_SHARE:
        failures.append(
            f"load_aware sent {aware.busy_share:.1%} of first choices to busy sources (at most {STEERED_SHARE:.0%})"
        )
    if blind.busy_share is not None and abs(blind.busy_share - busy_share) > FAIR_TOLERANCE:
        failures.append(
            f"random sent {blind.busy_share:.1%} to busy sources, not their fair {busy_share:.1%} "
            f"± {FAIR_TOLERANCE:.0%}: the comparison says nothing"
        )
    if failures:
        return Verdict(False, (*failures, *explain(evidence)))
    said = (
        f"load_aware sent {aware.busy_share or 0:.1%} of {aware.chosen:,} first choices to busy sources; "
        f"random {blind.busy_share or 0:.1%}, their fair share being {busy_share:.1%}"
    )
    return Verdict(True, (said,))


def explain(evidence: Evidence) -> list[str]:
    """What was seen along the path, in the order in which a load travels it."""
    said = []
    if not evidence.exporters_running:
        said.append("no exporter runs: nobody measures")
    if not evidence.series:
        said.append("Prometheus holds no mx_source_load series")
    else:
        said.append(f"Prometheus holds {evidence.series} mx_source_load series")
    if not evidence.operator_running:
        said.append("no operator runs: nobody writes loads to the server")
    elif not evidence.writes_accepted:
        said.append("the operator runs and has written nothing")
    else:
        said.append(f"the operator runs; the server accepted {evidence.writes_accepted:.0f} writes")
    if evidence.load_supported == 0:
        said.append("the operator found that the server does not store loads")
    said.append(f"{evidence.rows_with_load} of {evidence.rows} listed rows carry a load")
    said += [f"seen: {error}" for error in evidence.errors[:3]]
    return said


def expected_saving(results: Sequence[PolicyResult]) -> float | None:
    """The same from the measured shares alone: a pull from a busy source takes 6.66 times as long as any other.

    This is how ModelExpress' authors put it (their commit of load_aware: 67.6 % at 36.9 % busy sources), so the two
    can be compared; the simulated transfers beside it also feel the idle sources' own small loads.
    """
    shares = {result.policy: result.busy_share for result in results}
    aware, blind = shares["load_aware"], shares["random"]
    return None if aware is None or blind is None else 1 - (1 + PENALTY * aware) / (1 + PENALTY * blind)


def saving(results: Sequence[PolicyResult]) -> float | None:
    """By which share load_aware's mean transfer time is below random's."""
    times = {result.policy: result.times for result in results}
    aware, blind = times["load_aware"], times["random"]
    return None if aware is None or blind is None else 1 - aware.mean / blind.mean
