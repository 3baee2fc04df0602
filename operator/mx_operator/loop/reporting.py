"""From a cycle to each policy's report: conditions of this cycle, numbers, and why sources were not written."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from mx_operator.core import gates
from mx_operator.core.heartbeats import usual_interval
from mx_operator.core.joins import NO_IDENTITY
from mx_operator.core.model import Outcome, Result
from mx_operator.core.planning import CONFLICT, OBSERVE, UNCHANGED, Decision
from mx_operator.core.reports import Check, Counts, PolicyReport
from mx_operator.core.rules import Rules
from mx_operator.core.targets import State
from mx_operator.policies.spec import SourceLoadPolicy

if TYPE_CHECKING:
    from mx_operator.loop.endpoints import Cycle
    from mx_operator.loop.queries import Fetched

#: Share by which the interval seen may be longer than `sourceHeartbeat`.
_HEARTBEAT_TOLERANCE: Final = 0.2
#: Sources whose heartbeats are looked at; their median says as much as everybody's.
_ENOUGH: Final = 500


def reports(cycle: Cycle, wall: float) -> list[PolicyReport]:
    """What this cycle found out about each of its policies."""
    decisions: dict[str, list[Decision]] = {policy.name: [] for policy in cycle.policies}
    outcomes: dict[str, list[Outcome]] = {policy.name: [] for policy in cycle.policies}
    for decision in () if cycle.plan is None else cycle.plan.decisions:
        decisions[decision.policy].append(decision)
    for outcome in cycle.outcomes:
        outcomes[outcome.write.policy].append(outcome)
    return [_report(policy, cycle, decisions[policy.name], outcomes[policy.name], wall) for policy in cycle.policies]


def _report(
    policy: SourceLoadPolicy, cycle: Cycle, decisions: list[Decision], outcomes: list[Outcome], wall: float
) -> PolicyReport:
    lost = 0 if cycle.plan is None else cycle.plan.conflicts.get(policy.name, 0)
    counts = _counts(decisions, outcomes, lost)
    skips = collections.Counter(_skips(decisions, outcomes))
    if lost:
        skips[CONFLICT] = lost
    fetched = {signal.name: cycle.fetched.get((policy.prometheus, signal)) for signal in policy.signals}
    interval = usual_interval(cycle.ledger.memory.rows, [decision.row.key for decision in decisions[:_ENOUGH]])
    return PolicyReport(
        policy=policy.name,
        uid=policy.uid,
        generation=policy.generation,
        at=wall,
        prometheus=_prometheus(fetched),
        server=_server(cycle),
        load_supported=_load_supported(cycle, interval),
        data_fresh=_data_fresh(fetched, counts, cycle, skips),
        heartbeat=_heartbeat(policy, interval),
        counts=counts,
        skips=dict(skips),
        signal_ages=_ages(fetched, cycle.ended),
        heartbeat_interval=interval,
        clock_skew=cycle.ledger.clocks.skew,
        duration=cycle.ended - cycle.started,
        source_heartbeat=policy.source_heartbeat,
    )


def _counts(decisions: list[Decision], outcomes: list[Outcome], conflicting: int) -> Counts:
    states = collections.Counter(decision.state for decision in decisions)
    results = collections.Counter(outcome.result for outcome in outcomes)
    held = [d for d in decisions if d.target is not None and not d.write and d.reason != UNCHANGED]
    return Counts(
        listed=len(decisions) + conflicting,
        matched=states[State.MATCHED],
        unmatched=states[State.UNMATCHED],
        ambiguous=states[State.AMBIGUOUS],
        stale=states[State.STALE],
        invalid=states[State.INVALID],
        conflicting=conflicting,
        wanted=len(held) + sum(decision.write for decision in decisions),
        written=results[Result.ACCEPTED],
        failed=results[Result.REFUSED] + results[Result.DENIED] + results[Result.FAILED],
        clamped=sum(decision.clamped for decision in decisions),
        would_write=sum(decision.reason == OBSERVE for decision in decisions),
    )


def _skips(decisions: Iterable[Decision], outcomes: Iterable[Outcome]) -> Iterable[str]:
    for decision in decisions:
        if not decision.write:
            yield decision.reason or "no_reading"
    for outcome in outcomes:
        if outcome.result is Result.UNSENT:
            yield "too_late"


def _prometheus(fetched: Mapping[str, Fetched | None]) -> Check:
    failed = {name: one for name, one in fetched.items() if one is not None and one.index is None}
    if failed:
        name, first = next(iter(failed.items()))
        return Check(False, first.reason, f"signal {name}: {first.message}")
    waiting = [name for name, one in fetched.items() if one is None]
    if waiting:
        return Check(None, "Waiting", f"signal {waiting[0]}: no answer yet in this cycle")
    return Check(True, "Answering", f"{len(fetched)} signal{'s' * (len(fetched) > 1)} answered")


def _server(cycle: Cycle) -> Check:
    if cycle.list_error is not None:
        return Check(False, cycle.list_error.reason, f"ListSources: {cycle.list_error}")
    if cycle.plan is None:
        message = "no source is READY, or the server's backend failed: an empty list says no more"
        return Check(None, "EmptyList", message)
    return Check(True, "Listing", f"{len(cycle.rows)} READY source{'s' * (len(cycle.rows) != 1)}")


def _load_supported(cycle: Cycle, interval: float | None) -> Check:
    memory = cycle.ledger.memory
    if not memory.dated:
        message = "rows carry no updated_at, so no heartbeat can be seen: upgrade the MX server"
        return Check(False, "NoUpdatedAt", message)
    if memory.gate.phase is gates.Phase.CLOSED:
        message = (
            "written loads do not come back: the MX server, one of its replicas, or its CRD is from before"
            " source_load; upgrade it (one write in 10 minutes tries again)"
        )
        if interval is not None and interval < (1 - _HEARTBEAT_TOLERANCE) * cycle.rules.heartbeat:
            message += (
                f"; or sourceHeartbeat is too long: a heartbeat every {interval:.3g} s came over what was written"
            )
        return Check(False, "LoadNotStored", message)
    if memory.gate.phase is gates.Phase.CANARY:
        return Check(None, "NotTriedYet", "no written load was read back yet")
    return Check(True, "ReadBack", "written loads are read back")


def _data_fresh(fetched: Mapping[str, Fetched | None], counts: Counts, cycle: Cycle, skips: Mapping[str, int]) -> Check:
    if cycle.plan is None or any(one is None for one in fetched.values()):
        return Check(None, "Unknown", "nothing to judge by in this cycle")
    if any(one is not None and one.index is None for one in fetched.values()):
        return Check(False, "NoAnswer", "Prometheus did not answer")
    mine = counts.listed - counts.conflicting
    if mine == 0:
        return Check(None, "NoSources", "no listed source is meant by this policy")
    if counts.matched == mine:
        return Check(True, "Fresh", f"{counts.matched} of {mine} sources have a fresh sample")
    if counts.matched:
        return Check(True, "Partly", _missing(counts, mine))
    if skips.get(NO_IDENTITY.reason) == mine:
        return Check(None, "Identifying", f"asking the MX server where its {mine} sources are")
    reason = "Stale" if counts.stale else "Invalid" if counts.invalid else "NoSeries"
    return Check(False, reason, _missing(counts, mine))


def _missing(counts: Counts, mine: int) -> str:
    parts = {
        "unmatched": counts.unmatched,
        "ambiguous": counts.ambiguous,
        "stale": counts.stale,
        "invalid": counts.invalid,
    }
    said = ", ".join(f"{number} {name}" for name, number in parts.items() if number)
    return f"{counts.matched} of {mine} sources have a fresh sample ({said})"


def _heartbeat(policy: SourceLoadPolicy, interval: float | None) -> Check:
    if interval is None:
        return Check(None, "NotSeenYet", "fewer than two heartbeats of any source were seen")
    expected = policy.source_heartbeat
    seen = f"sources send a heartbeat every {interval:.3g} s, sourceHeartbeat is {expected:g} s"
    # Of those that come sooner than the next can, every other one would not be believed.
    if Rules(expected).soonest <= interval <= (1 + _HEARTBEAT_TOLERANCE) * expected:
        return Check(True, "AsExpected", seen)
    return Check(False, "Unexpected", f"{seen}: set it to what MX_HEARTBEAT_INTERVAL_SECS is")


def _ages(fetched: Mapping[str, Fetched | None], now: float) -> dict[str, float]:
    return {
        name: one.index.youngest + now - one.at
        for name, one in fetched.items()
        if one is not None and one.index is not None and one.index.youngest is not None
    }


def unusable(policy: SourceLoadPolicy, reason: str, message: str, wall: float) -> PolicyReport:
    """The report of a policy that has no cycles: its endpoint cannot be called, or each of them fails."""
    unknown = Check(None, "NotRunning", "there was no cycle")
    return PolicyReport(
        policy=policy.name,
        uid=policy.uid,
        generation=policy.generation,
        at=wall,
        prometheus=unknown,
        server=Check(False, reason, message),
        load_supported=unknown,
        data_fresh=unknown,
        heartbeat=unknown,
        counts=Counts(),
        skips={},
        signal_ages={},
        heartbeat_interval=None,
        clock_skew=None,
        duration=0.0,
        source_heartbeat=policy.source_heartbeat,
    )
