"""The two policies that look at no load: `random`, the default, and `rendezvous_hash`, what all others fall back to."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from mx_selector.digests import UNIT
from mx_selector.model import CandidateT, Target
from mx_selector.policies.base import ScoredPolicy


class Random:
    """A shuffle, with a generator of its own so that no seed of the application is consumed."""

    name = "random"

    def order(self, candidates: Sequence[CandidateT], target: Target) -> list[CandidateT]:
        """All candidates in random order, a new one each time."""
        return self.top(candidates, target, len(candidates))

    def top(self, candidates: Sequence[CandidateT], target: Target, k: int) -> list[CandidateT]:
        """`k` candidates drawn at random."""
        del target
        return random.Random().sample(list(candidates), max(0, min(k, len(candidates))))


class RendezvousHash(ScoredPolicy):
    """Highest random weight: each target has its own stable order, and targets spread evenly over sources."""

    name = "rendezvous_hash"

    def scores(self, candidates: Sequence[Any], digests: Sequence[int]) -> Sequence[float]:
        """The unit hash. It rounds the digest to 53 bits, which the digest as tie-break makes good."""
        del candidates
        return [digest * UNIT for digest in digests]
