"""`headroom`: weighted rendezvous hashing, where a source's weight is the bandwidth a pull would find there.

Pulls spread in proportion to weight, so a fleet of targets does not herd onto the few least loaded sources, which
`load_aware` makes them do. Nothing is shared: each choice depends on the rows and the target alone.
"""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Sequence
from typing import Any, Final, cast

from mx_selector import readings, settings
from mx_selector.digests import UNIT
from mx_selector.policies.base import ScoredPolicy

#: How much slower a transfer gets with load: 6.66 times at 0.99 (the contention published with the field).
CONTENTION: Final = 5.66 / 0.99
_LEAST: Final = 2.0**-20
_MAX_EXPONENT: Final = 16.0  # (2**-20)**16 is far from underflow


def headroom(load: float, exponent: float = 1.0) -> float:
    """The weight of a source with a known load: free share times remaining speed, `((1-L)/(1+kL))**exponent`.

    Args:
        load: In [0, 1].
        exponent: In [0, 16]; 0 makes all sources alike.

    Returns:
        A number in [2**-320, 1].
    """
    return float(max(_LEAST, (1.0 - load) / (1.0 + CONTENTION * load)) ** exponent)


@dataclasses.dataclass(frozen=True, slots=True)
class Headroom(ScoredPolicy):
    """Scores `ln(hash) / weight`: the first choice falls on a source with probability weight / sum of weights.

    A source without a reading, or whose row is much older than the newest, has the mean weight of the others.
    """

    exponent: float = 1.0
    name: str = "headroom"

    @classmethod
    def from_environment(cls, environ: settings.Environment) -> Headroom:
        """As `MX_P2P_LOAD_WEIGHT` says, which is the exponent here and ends at 16."""
        return cls(min(_MAX_EXPONENT, settings.load_weight(environ)))

    def loads(self, candidates: Sequence[Any]) -> list[float | None]:
        """The loads believed: those of outdated rows are unknown."""
        loads = readings.loads_of(candidates)
        old = readings.outdated(readings.stamps_of(candidates))
        return loads if old is None else [None if o else load for o, load in zip(old, loads, strict=True)]

    def weights(self, candidates: Sequence[Any]) -> list[float]:
        """The weight of each, in (0, 1]; all 1 when nobody's load is known."""
        return self._weights(self.loads(candidates))

    def _weights(self, loads: Sequence[float | None]) -> list[float]:
        if None not in loads:
            return _headrooms(cast("Sequence[float]", loads), self.exponent)
        known = _headrooms([load for load in loads if load is not None], self.exponent)
        mean, weights = _mean(known), iter(known)
        return [mean if load is None else next(weights) for load in loads]

    def scores(self, candidates: Sequence[Any], digests: Sequence[int]) -> Sequence[float]:
        """`ln(hash) / weight`; the plain hash when all loads are the same, so that the order is the baseline's."""
        loads = self.loads(candidates)
        if not loads or loads.count(loads[0]) == len(loads):
            return [digest * UNIT for digest in digests]
        return list(map(operator.truediv, _logarithms(digests), self._weights(loads)))


def _headrooms(loads: Sequence[float], exponent: float) -> list[float]:
    """`headroom` of each, without a call per load in the usual case."""
    if exponent == 1.0:
        return [w if (w := (1.0 - load) / (1.0 + CONTENTION * load)) > _LEAST else _LEAST for load in loads]
    return [headroom(load, exponent) for load in loads]


def _mean(weights: Sequence[float]) -> float:
    if not weights:
        return 1.0
    if min(weights) == max(weights):
        return weights[0]
    return math.fsum(weights) / len(weights)  # fsum is exact, hence the same for every order of the rows


def _logarithms(digests: Sequence[int]) -> list[float]:
    """The logarithm of each unit hash; a digest of 0 counts as a half, below every other."""
    try:
        return list(map(math.log, [digest * UNIT for digest in digests]))
    except ValueError:
        return [math.log(digest * UNIT or UNIT / 2) for digest in digests]
