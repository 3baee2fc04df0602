"""How often a cycle runs, and how many writes it may have: slower the slower the others answer."""

from __future__ import annotations

import dataclasses
from typing import Final

from mx_operator.core.rules import WRITE_BUDGET, Rules

#: A cycle takes at most a twentieth of the slower dependency's time.
_STRETCH: Final = 20.0
LONGEST_INTERVAL: Final = 15.0
#: Writes that take longer than this, in seconds, are more than the server can bear.
_SLOW_WRITE: Final = 0.5
_SLOWEST: Final = 1 / 64


def interval(rules: Rules, list_took: float, queries_took: float) -> float:
    """Seconds from the start of one cycle to the start of the next."""
    stretched = _STRETCH * max(list_took, queries_took)
    return min(max(rules.interval, stretched), max(rules.interval, LONGEST_INTERVAL))


@dataclasses.dataclass(frozen=True, slots=True)
class Pace:
    """The share of `maxWritesPerSecond` in use: halved while own writes are slow, given back step by step."""

    share: float = 1.0

    def after(self, median_write: float | None) -> Pace:
        """The pace after a cycle whose writes took `median_write` seconds each (None: there were none)."""
        if median_write is None:
            return self
        if median_write > _SLOW_WRITE:
            return Pace(max(_SLOWEST, self.share / 2))
        return Pace(min(1.0, self.share * 1.5))

    def per_second(self, rules: Rules) -> float:
        """Writes per second now."""
        return rules.writes_per_second * self.share

    def budget(self, rules: Rules) -> int:
        """Writes a cycle may have: what fits into the time its list is good for; at least one."""
        return max(1, int(self.per_second(rules) * WRITE_BUDGET))
