"""What a policy is, and the shape that most of ours share: a score per candidate."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any, Protocol

from mx_selector import digests as hashing
from mx_selector import orders
from mx_selector.model import CandidateT, Target


class Policy(Protocol):
    """Orders candidates for a target, best first. Users register their own under a name of theirs.

    A policy may also have `top(candidates, target, k)` where that is cheaper than `order(...)[:k]`.
    """

    @property
    def name(self) -> str:
        """What metrics and logs call it."""

    def order(self, candidates: Sequence[CandidateT], target: Target) -> list[CandidateT]:
        """All candidates, best first; the same list in any order gives the same answer."""


class ScoredPolicy(abc.ABC):
    """A policy that gives each candidate a number, the higher the better."""

    name: str

    @abc.abstractmethod
    def scores(self, candidates: Sequence[Any], digests: Sequence[int]) -> Sequence[float]:
        """One finite number per candidate. Equal numbers fall back to the digest, so equal loads mean rendezvous."""

    def weights(self, candidates: Sequence[Any]) -> Sequence[float | None]:
        """What multiplies each candidate's chances, for people to read; None where the policy has no such thing."""
        return [None] * len(candidates)

    def order(self, candidates: Sequence[CandidateT], target: Target) -> list[CandidateT]:
        """All candidates, best first."""
        digests = hashing.digests(candidates, target)
        return orders.by_score(candidates, self.scores(candidates, digests), digests)

    def top(self, candidates: Sequence[CandidateT], target: Target, k: int) -> list[CandidateT]:
        """The first `k` of `order`, without sorting the rest."""
        digests = hashing.digests(candidates, target)
        return orders.by_score(candidates, self.scores(candidates, digests), digests, k)


def name_of(policy: object) -> str:
    """The policy's name for labels and logs, whatever it has for one."""
    return str(getattr(policy, "name", None) or type(policy).__name__)
