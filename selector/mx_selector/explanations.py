"""Why a target would choose what it chooses: the numbers behind an order, and one sentence.

Pure; the command line and `docs` examples print what this returns. Works for every policy that scores; for others it
gives the order alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from mx_selector import digests as hashing
from mx_selector import ranking, readings
from mx_selector.digests import UNIT
from mx_selector.model import Target
from mx_selector.policies.base import Policy, ScoredPolicy
from mx_selector.policies.topology import TopologyAware


@dataclasses.dataclass(frozen=True, slots=True)
class Standing:
    """One candidate's place and what led to it.

    Attributes:
        rank: 1 for the source that would be tried first.
        worker_id: The source.
        mx_source_id: What it holds.
        worker_rank: Its shard.
        load: In [0, 1]; None when unknown.
        age: Seconds since its row was stamped; None without a stamp.
        unit_hash: The target's own preference for it, in [0, 1].
        weight: What multiplies its chances (`headroom`); None elsewhere.
        score: What it was ordered by; None for policies that do not score.
        tier: Narrowest level shared with the target; empty without topology.
    """

    rank: int
    worker_id: str
    mx_source_id: str
    worker_rank: int
    load: float | None
    age: float | None
    unit_hash: float
    weight: float | None
    score: float | None
    tier: str


def standings(candidates: Sequence[Any], target: Target, policy: Policy, now: float) -> list[Standing]:
    """The candidates in the policy's order, with their numbers.

    Args:
        candidates: Rows of one identity and rank.
        target: Who pulls.
        policy: What orders them.
        now: Unix seconds, for the ages.
    """
    ordered = ranking.rank(candidates, target, policy)
    scores, weights, tiers = _numbers(ordered, target, policy)
    hashes = hashing.digests(ordered, target)
    return [
        Standing(
            position + 1,
            row.worker_id,
            row.mx_source_id,
            row.worker_rank,
            readings.load_of(row),
            now - stamp / 1000 if (stamp := readings.stamp_of(row)) else None,
            hashes[position] * UNIT,
            weights[position],
            scores[position],
            tiers[position],
        )
        for position, row in enumerate(ordered)
    ]


def _numbers(
    ordered: Sequence[Any], target: Target, policy: Policy
) -> tuple[Sequence[float | None], Sequence[float | None], list[str]]:
    tiers = [""] * len(ordered)
    if isinstance(policy, TopologyAware):
        tiers = [policy.levels[d] if d >= 0 else "" for d in policy.depths(ordered, target)]
        policy = policy.tiebreak
    nothing: list[float | None] = [None] * len(ordered)
    if not isinstance(policy, ScoredPolicy):
        return nothing, nothing, tiers
    scores, weights = list(nothing), list(nothing)
    for tier in set(tiers):  # a policy inside a tier sees that tier only
        members = [i for i, t in enumerate(tiers) if t == tier]
        rows = [ordered[i] for i in members]
        tier_scores = policy.scores(rows, hashing.digests(rows, target))
        for i, score, weight in zip(members, tier_scores, policy.weights(rows), strict=True):
            scores[i], weights[i] = score, weight
    return scores, weights, tiers


def why(standing: Sequence[Standing], policy: Policy) -> str:
    """One sentence on why the first won."""
    if not standing:
        return "There is no source to choose from."
    first = standing[0]
    if len(standing) == 1:
        return f"{first.worker_id} is the only source."
    if first.score is None:
        return f"{first.worker_id} came first by {policy.name}; it may be another one next time."
    near = [s for s in standing if s.tier == first.tier]
    lead = f"{first.worker_id} won"
    if first.tier and len(near) < len(standing):
        lead += f" among the {len(near)} of {len(standing)} sources in this target's {first.tier}"
    return f"{lead}: {_ordinal(_place(near, first))} hash of {len(near)} ({first.unit_hash:.2f}){_load_clause(near)}."


def _place(near: Sequence[Standing], first: Standing) -> int:
    return 1 + sum(s.unit_hash > first.unit_hash for s in near)


def _load_clause(near: Sequence[Standing]) -> str:
    first = near[0]
    if len({s.load for s in near}) == 1:
        return ", and all loads are the same" if first.load is not None else ", and nobody's load is known"
    shown = "no known load" if first.load is None else f"load {first.load:.2f}"
    passed = [s for s in near[1:] if s.unit_hash > first.unit_hash]
    if not passed:
        return f", with {shown}"
    known = [s.load for s in passed if s.load is not None]
    over = f" (the lightest at {min(known):.2f})" if known else ""
    return f", with {shown}, ahead of {len(passed)} with a better hash{over}"


def _ordinal(place: int) -> str:
    suffix = "th" if 10 <= place % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(place % 10, "th")
    return "best" if place == 1 else f"{place}{suffix} best"
