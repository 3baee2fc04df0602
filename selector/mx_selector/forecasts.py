"""How many of the next replicas each source would get, per policy, at the loads of now: a look before a rollout.

Pure. Replicas name themselves at random when they start, so this draws target names from a fixed seed, lets each choose
exactly as it would, and scales to the number asked for.
"""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final

from mx_selector import ranking, readings
from mx_selector.model import Target
from mx_selector.policies.base import Policy

#: A source at or above this load counts as busy.
BUSY: Final = 0.7
_DRAWS: Final = 4_000
_HASHES: Final = 2_000_000  # bounds the work for large fleets: fewer draws, not a longer wait


@dataclasses.dataclass(frozen=True, slots=True)
class Forecast:
    """What one policy would do with the next `targets` replicas.

    Attributes:
        policy: Its name.
        pulls: Expected number per source, in the order of the candidates.
        busy_pulls: Expected number on sources with a load of 0.7 or more.
        deepest: Most pulls that fell on one source, in the median of the rollouts drawn.
        draws: Targets drawn; a share's standard error is at most 0.5 / sqrt(draws).
    """

    policy: str
    pulls: tuple[float, ...]
    busy_pulls: float
    deepest: int
    draws: int


def forecast(candidates: Sequence[Any], model: Target, policy: Policy, targets: int) -> Forecast:
    """Expected pulls per source.

    Args:
        candidates: Rows of one identity and rank.
        model: A target whose worker_id is replaced by each replica's.
        policy: What they choose by.
        targets: How many replicas will start, at least 1.
    """
    draws = max(targets, min(_DRAWS, max(100, _HASHES // max(1, len(candidates)))))
    draws -= draws % targets
    places = {id(c): i for i, c in enumerate(candidates)}
    firsts = [places[id(first)] for first in _first_choices(candidates, model, policy, draws)]
    counts = Counter(firsts)
    pulls = tuple(counts[i] * targets / draws for i in range(len(candidates))) if firsts else ()
    busy = sum(p for p, c in zip(pulls, candidates, strict=False) if (readings.load_of(c) or 0.0) >= BUSY)
    return Forecast(policy.name, pulls, busy, _deepest(firsts, targets), draws)


def _first_choices(candidates: Sequence[Any], model: Target, policy: Policy, draws: int) -> Iterator[Any]:
    names = random.Random(0)
    for _ in range(draws):
        target = dataclasses.replace(model, worker_id=f"{names.getrandbits(32):08x}")
        yield from ranking.top(candidates, target, 1, policy)


def _deepest(firsts: Sequence[int], targets: int) -> int:
    rollouts = (firsts[i : i + targets] for i in range(0, len(firsts), targets))
    piles = sorted(max(Counter(rollout).values()) for rollout in rollouts if rollout)
    return piles[len(piles) // 2] if piles else 0
