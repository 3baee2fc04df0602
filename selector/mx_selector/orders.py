"""From scores to an order that is the same for every order of the input.

Policies end here. Candidates are compared by score, then digest, then what identifies them (`mx_source_id`,
`worker_id`, `worker_rank`), then `updated_at` and what else a row tells: descending, so that of two rows for one worker
the newer comes first.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from mx_selector import readings
from mx_selector.model import CandidateT

_Key = tuple[int, str, str, int, int, float, str]


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
    order = sorted(range(count), key=scores.__getitem__, reverse=True)
    for start, stop in _ties([scores[i] for i in order]):
        order[start:stop] = _settled(candidates, digests, order[start:stop])
    return [candidates[i] for i in order]


def _ties(ordered: Sequence[float]) -> Iterator[tuple[int, int]]:
    """Where equal scores stand, as slices of the ordered list; there are hardly ever any."""
    same = [n for n, (one, two) in enumerate(itertools.pairwise(ordered)) if one == two]
    start = 0
    while start < len(same):
        stop = start + 1
        while stop < len(same) and same[stop] == same[stop - 1] + 1:
            stop += 1
        yield same[start], same[stop - 1] + 2
        start = stop


def _first(candidates: Sequence[Any], scores: Sequence[float], digests: Sequence[int], k: int) -> list[int]:
    if k <= 0:
        return []
    threshold = heapq.nlargest(k, scores)[-1]
    within = [i for i, score in enumerate(scores) if score >= threshold]  # more than k when several tie for the last

    def key(i: int) -> tuple[float, _Key]:
        return scores[i], _key(candidates, digests, i)

    return sorted(within, key=key, reverse=True)[:k]


def _settled(candidates: Sequence[Any], digests: Sequence[int], run: list[int]) -> list[int]:
    """Candidates of one score: by digest, and where that ties too, by identity."""
    if len({digests[i] for i in run}) == len(run):
        return sorted(run, key=digests.__getitem__, reverse=True)
    return sorted(run, key=lambda i: _key(candidates, digests, i), reverse=True)


def _key(candidates: Sequence[Any], digests: Sequence[int], i: int) -> _Key:
    return (digests[i], *identity_of(candidates[i]))


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
