"""`load_aware`: the unit hash minus weight times load, in the released client's order.

Differences, each on purpose: a NaN load is unknown instead of idle, weights end at 1e6, and ties go by identity
instead of by the server's row order.
"""

from __future__ import annotations

import dataclasses
import heapq
import math
from collections.abc import Sequence
from typing import Any

from mx_selector import digests as hashing
from mx_selector import orders, readings, settings
from mx_selector.digests import UNIT
from mx_selector.model import CandidateT, Target
from mx_selector.policies.base import ScoredPolicy

_PRUNE_FROM = 64  # below this many candidates, hashing all of them costs less than finding out which need it
_SAMPLE = 256
_WAVE = 96


@dataclasses.dataclass(frozen=True, slots=True)
class LoadAware(ScoredPolicy):
    """Scores `u - weight * load`.

    Attributes:
        weight: How much a full load counts against a full hash, in [0, 1e6]. 0 orders as `rendezvous_hash`.
        unknown: The load assumed of a source without a reading, in [0, 1].
        name: What metrics call it.
    """

    weight: float = 1.0
    unknown: float = 0.5
    name: str = "load_aware"

    @classmethod
    def from_environment(cls, environ: settings.Environment) -> LoadAware:
        """As `MX_P2P_LOAD_WEIGHT` and `MX_P2P_UNKNOWN_LOAD` say."""
        return cls(settings.load_weight(environ), settings.unknown_load(environ))

    def _loads(self, candidates: Sequence[Any]) -> list[float]:
        unknown = self.unknown
        return [unknown if load is None else load for load in readings.loads_of(candidates)]

    def scores(self, candidates: Sequence[Any], digests: Sequence[int]) -> Sequence[float]:
        """`u - weight * load` of each."""
        return self._scores(self._loads(candidates), digests)

    def _scores(self, loads: Sequence[float], digests: Sequence[int]) -> list[float]:
        weight = self.weight
        return [digest * UNIT - weight * load for digest, load in zip(digests, loads, strict=True)]

    def top(self, candidates: Sequence[CandidateT], target: Target, k: int) -> list[CandidateT]:
        """The first `k` of `order`, hashing only candidates whose load still lets them in.

        A hash adds at most 1 to a score, so once `k` scores are known, a load `l` with `1 - weight * l` below the
        least of them needs no hash. Exact: ties at the edge are kept and decided by digest.
        """
        loads = self._loads(candidates)
        probe = self._probe(loads, k) if k > 0 and len(loads) >= _PRUNE_FROM else range(len(loads))
        visit = _Visit(self, candidates, loads, target)
        visit.hash(probe)
        if len(probe) < len(loads):
            self._visit_rest(visit, loads, max(probe, key=loads.__getitem__), k)
        return orders.by_score(visit.rows, visit.scores, visit.digests, k)

    def _probe(self, loads: Sequence[float], k: int) -> Sequence[int]:
        """Indices of the least loaded, by a guess from a sample at how many hold the first `k`; all if it is most."""
        sample = sorted(loads[:: max(1, len(loads) // _SAMPLE)])
        share = math.sqrt(4.0 * k / (len(loads) * max(self.weight, 1e-9)))
        ceiling = sample[min(len(sample) - 1, int(share * len(sample)))]
        probe = [i for i, load in enumerate(loads) if load <= ceiling]
        return probe if k <= len(probe) <= len(loads) // 2 else range(len(loads))

    def _visit_rest(self, visit: _Visit, loads: Sequence[float], heaviest: int, k: int) -> None:
        """Hash what lies above the probe's loads for as long as it can still be among the first `k`."""
        weight, ceiling, reached = self.weight, loads[heaviest], visit.reached(k)
        possible = [i for i, load in enumerate(loads) if load > ceiling and 1.0 - weight * load >= reached]
        possible.sort(key=loads.__getitem__)
        for start in range(0, len(possible), _WAVE):
            if 1.0 - weight * loads[possible[start]] < visit.reached(k):
                break
            visit.hash(possible[start : start + _WAVE])


class _Visit:
    """The candidates hashed so far, with their digests and scores."""

    def __init__(self, policy: LoadAware, candidates: Sequence[Any], loads: Sequence[float], target: Target) -> None:
        self._policy, self._candidates, self._loads, self._target = policy, candidates, loads, target
        self.rows: list[Any] = []
        self.digests: list[int] = []
        self.scores: list[float] = []

    def hash(self, indices: Sequence[int]) -> None:
        """Hash these too."""
        rows = [self._candidates[i] for i in indices]
        digests = hashing.digests(rows, self._target)
        self.rows += rows
        self.digests += digests
        self.scores += self._policy._scores([self._loads[i] for i in indices], digests)

    def reached(self, k: int) -> float:
        """The k-th best score so far."""
        return heapq.nlargest(k, self.scores)[-1]
