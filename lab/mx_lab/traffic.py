"""How the simulated NICs share their bandwidth, and what their counters count.

Serving traffic comes first; pulls share what is left, and each pull is slowed by what its source is busy with:
a transfer from a source at load L takes 1 + k L times as long as from an idle one, with k such that it is 6.66 at
L = 0.99, the contention that ModelExpress' authors measured on a cluster (their pull request 510).
Pure but for the state it advances; seconds are those of the caller's clock.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Final

from mx_lab.fleet import LabSource

#: A 400 Gb/s port, in bytes a second.
LINK: Final = 50e9
#: What one pull gets from an idle source: 211 Gb/s, as measured there for a 7B model.
PULL: Final = 211e9 / 8
CONTENTION: Final = 5.66 / 0.99


@dataclasses.dataclass
class Pull:
    """A transfer under way."""

    size: float  # bytes
    started: float
    done: float = 0.0
    ended: float | None = None

    def advance(self, rate: float, start: float, end: float) -> float:
        """Move on at `rate` from `start` (or its own start, if later) to `end`; the bytes moved."""
        start, left = max(start, self.started), self.size - self.done
        moved = min(left, rate * max(0.0, end - start))
        self.done += moved
        if moved == left:
            self.ended = start + left / rate
        return moved


@dataclasses.dataclass
class Nic:
    """One source's NIC and cache over time."""

    source: LabSource
    transmitted: float = 0.0  # bytes since the start
    received: float = 0.0
    pulls: list[Pull] = dataclasses.field(default_factory=list)
    #: Share of the link that serving sends from now on, instead of the source's own average.
    level: float | None = None

    def serving(self, now: float) -> float:
        """Share of the link that serving sends at `now`: its average, gently moving."""
        average = self.source.serving_tx if self.level is None else self.level
        return _waves(average, now, len(self.source.name) + self.source.node)

    def kv(self, now: float) -> float:
        """KV cache in use at `now`, in [0, 1]."""
        return _waves(self.source.kv, now, 3 * self.source.node + 1)

    def load(self, now: float) -> float:
        """What serving makes of this source at `now`."""
        return max(self.serving(now), self.kv(now))

    def advance(self, now: float, seconds: float) -> list[Pull]:
        """Move time from `now` on by `seconds`.

        Returns:
            The pulls that ended within it, their `ended` set.
        """
        serving = self.serving(now) * LINK
        wanted = PULL / (1 + CONTENTION * self.load(now))
        rate = min(wanted, (LINK - serving) / max(1, len(self.pulls)))
        self.transmitted += serving * seconds
        self.received += 0.1 * serving * seconds
        for pull in self.pulls:
            self.transmitted += pull.advance(rate, now, now + seconds)
        ended = [pull for pull in self.pulls if pull.ended is not None]
        self.pulls = [pull for pull in self.pulls if pull.ended is None]
        return ended


def _waves(level: float, now: float, phase: float) -> float:
    return level + min(0.02, level, 1.0 - level) * math.sin(now / 2 + phase)
