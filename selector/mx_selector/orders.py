"""From scores to an order that is the same for every order of the input.

Policies end here. Candidates are compared by score, then digest, then what identifies them (`mx_source_id`,
`worker_id`, `worker_rank`), then `updated_at` and what else a row tells: descending, so that of two rows for one worker
the newer comes first.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any

from mx_selector import readings
from mx_selector.model import CandidateT

_Key = tuple[float, int, str, str, int, int, float, str]


def by_score(
    candidates: Sequence[CandidateT], scores: Sequence[float], digests: Sequence[int], k: int | None = None
) -> list[CandidateT]:
    """The candidates in descending order of score; the first `k` of them when given.

    Args:
        candidates: In any order.
        scores: One per candidate, none of them NaN.
        digests: One per candidate; they break ties.
        k: How many are wanted; None means all.
    """
    count = len(candidates)
    if k is not None and k < count:
        return [candidates[i] for i in _first(candidates, scores, digests, k)]
    if len(set(scores)) == count:  # the usual case: no ties, so sort plain floats
        return [candidates[i] for i in sorted(range(count), key=scores.__getitem__, reverse=True)]
    if len(set(digests)) == count:
        return [candidates[i] for _, _, i in sorted(zip(scores, digests, range(count), strict=True), reverse=True)]
    return [candidates[i] for i in _sorted(candidates, scores, digests, range(count))]


def _first(candidates: Sequence[Any], scores: Sequence[float], digests: Sequence[int], k: int) -> list[int]:
    if k <= 0:
        return []
    threshold = heapq.nlargest(k, scores)[-1]
    within = [i for i, score in enumerate(scores) if score >= threshold]  # more than k when several tie for the last
    return _sorted(candidates, scores, digests, within)[:k]


def _sorted(
    candidates: Sequence[Any], scores: Sequence[float], digests: Sequence[int], indices: Sequence[int]
) -> list[int]:
    def key(i: int) -> _Key:
        return (scores[i], digests[i], *identity_of(candidates[i]))

    return sorted(indices, key=key, reverse=True)


def identity_of(candidate: Any) -> tuple[str, str, int, int, float, str]:
    """What tells two rows apart when score and digest do not, in comparable form whatever the attributes hold."""
    return (
        str(getattr(candidate, "mx_source_id", "")),
        str(getattr(candidate, "worker_id", "")),
        _integer(getattr(candidate, "worker_rank", 0)),
        _integer(getattr(candidate, "updated_at", 0)),
        -1.0 if (load := readings.load_of(candidate)) is None else load,
        str(getattr(candidate, "accelerator", "")),
    )


def _integer(value: object) -> int:
    return value if isinstance(value, int) else 0
