"""`load_aware`: the unit hash minus weight times load, in the released client's order.

Differences, each on purpose: a NaN load is unknown instead of idle, weights end at 1e6, and ties go by identity
instead of by the server's row order.
"""

from __future__ import annotations

import dataclasses
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
        weight = self.weight
        return [digest * UNIT - weight * load for digest, load in zip(digests, self._loads(candidates), strict=True)]

    def top(self, candidates: Sequence[CandidateT], target: Target, k: int) -> list[CandidateT]:
        """The first `k` of `order`, hashing only candidates whose load still lets them in.

        A hash adds at most 1 to a score, so once `k` scores are known, a load `l` with `1 - weight * l` below the
        least of them needs no hash. Exact: ties at the edge are kept and decided by digest.
        """
        count = len(candidates)
        if not 0 < k < count:
            return super(LoadAware, self).top(candidates, target, k)
        loads = self._loads(candidates)
        chosen = self._worth_hashing(candidates, loads, target, k) if count >= _PRUNE_FROM else None
        if chosen is None:
            chosen, rows = range(count), candidates
        else:
            rows, loads = [candidates[i] for i in chosen], [loads[i] for i in chosen]
        digests = hashing.digests(rows, target)
        weight = self.weight
        scores = [digest * UNIT - weight * load for digest, load in zip(digests, loads, strict=True)]
        return orders.by_score(rows, scores, digests, k)

    def _worth_hashing(
        self, candidates: Sequence[Any], loads: Sequence[float], target: Target, k: int
    ) -> Sequence[int] | None:
        """Indices of the candidates that can be among the first `k`; None when that would be most of them."""
        ceiling = self._probe_ceiling(loads, k)
        probe = [i for i, load in enumerate(loads) if load <= ceiling]
        if not k <= len(probe) <= len(loads) // 2:
            return None
        digests = hashing.digests([candidates[i] for i in probe], target)
        weight = self.weight
        reached = sorted(digest * UNIT - weight * loads[i] for digest, i in zip(digests, probe, strict=True))[-k]
        return [i for i, load in enumerate(loads) if 1.0 - weight * load >= reached]

    def _probe_ceiling(self, loads: Sequence[float], k: int) -> float:
        """A load below which enough candidates lie to hold the first `k`, guessed from a sample."""
        sample = sorted(loads[:: max(1, len(loads) // _SAMPLE)])
        share = math.sqrt(4.0 * k / (len(loads) * max(self.weight, 1e-9)))
        return sample[min(len(sample) - 1, int(share * len(sample)))]
