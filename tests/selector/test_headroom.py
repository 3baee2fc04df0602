"""The laws of `headroom`: the baseline on equal loads, shares in proportion, one change moves one source's pulls."""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mx_selector import rank, top
from mx_selector.digests import UNIT
from mx_selector.policies.headroom import CONTENTION, Headroom, headroom
from tests.selector.rows import TARGET, ids, row, rows, targets

LOAD = st.floats(0, 1, width=32)


@pytest.mark.parametrize("load", [None, 0.0, 0.3, 0.5, 0.99, 1.0, math.nan])
@pytest.mark.parametrize("count", [1, 2, 100, 5_000])
def test_equal_loads_are_exactly_rendezvous(load: float | None, count: int) -> None:
    candidates = rows([load] * count)
    assert rank(candidates, TARGET, "headroom") == rank(candidates, TARGET, "rendezvous_hash")
    assert top(candidates, TARGET, 3, "headroom") == top(candidates, TARGET, 3, "rendezvous_hash")


@given(st.lists(LOAD, min_size=2, max_size=30), st.sampled_from([0.3, 0.5, 0.99]))
def test_the_formula_agrees_with_rendezvous_on_equal_loads_without_its_shortcut(
    loads: list[float], load: float
) -> None:
    """One unlike source switches the shortcut off; the alike keep their rendezvous order among themselves."""
    alike = rows([load] * len(loads))
    mixed = rank([*alike, row("odd", 0.123)], TARGET, "headroom")
    assert [r.worker_id for r in mixed if r.worker_id != "odd"] == ids(rank(alike, TARGET, "rendezvous_hash"))


@given(LOAD, st.integers(1, 40), st.integers(1, 5))
def test_unknown_sources_beside_equal_ones_are_exactly_rendezvous_too(load: float, known: int, unknown: int) -> None:
    candidates = rows([*[load] * known, *[None] * unknown])
    assert len(set(Headroom().weights(candidates))) == 1
    assert rank(candidates, TARGET, "headroom") == rank(candidates, TARGET, "rendezvous_hash")


def test_shares_are_proportional_to_weight_within_one_percent() -> None:
    loads = [0.0, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 0.99, None]
    candidates, draws = rows(loads), 20_000
    weights = Headroom().weights(candidates)
    firsts = Counter(top(candidates, t, 1, "headroom")[0].worker_id for t in targets(draws))
    for candidate, weight in zip(candidates, weights, strict=True):
        assert firsts[candidate.worker_id] / draws == pytest.approx(weight / sum(weights), abs=0.01)


def test_a_change_of_one_load_moves_only_pulls_to_or_from_it() -> None:
    rng, moved = random.Random(5), 0
    loads = [rng.random() for _ in range(20)]
    before = rows(loads)
    for new in (0.0, 0.4, 1.0):
        after = rows([new, *loads[1:]])
        for target in targets(2_000):
            old_first, new_first = (top(c, target, 1, "headroom")[0].worker_id for c in (before, after))
            assert old_first == new_first or "w0" in (old_first, new_first)
            moved += old_first != new_first
    assert moved > 100


def test_a_source_that_leaves_moves_only_its_own_pulls() -> None:
    candidates = rows([0.1, 0.5, 0.2, 0.9, 0.0])
    for target in targets(1_000):
        full = ids(rank(candidates, target, "headroom"))
        assert ids(rank(candidates[1:], target, "headroom")) == [w for w in full if w != "w0"]


def test_the_weight_is_free_share_times_remaining_speed() -> None:
    assert headroom(0.0) == 1.0
    assert headroom(0.99) == pytest.approx(0.01 / 6.66)
    assert headroom(0.5) == pytest.approx(0.5 / (1 + CONTENTION / 2))
    assert headroom(1.0) == 2.0**-20
    assert headroom(0.7, 0.0) == 1.0


@given(st.floats(0, 1), st.floats(0, 1), st.floats(0, 16))
def test_more_load_never_weighs_more(one: float, two: float, exponent: float) -> None:
    low, high = sorted((one, two))
    assert headroom(high, exponent) <= headroom(low, exponent)
    assert 0.0 < headroom(high, exponent) <= 1.0


@settings(max_examples=300)
@given(
    st.lists(st.none() | st.floats(width=32), max_size=12),
    st.floats(0, 16),
    st.lists(st.integers(0, 2**64 - 1), min_size=12, max_size=12),
)
def test_scores_are_finite_for_every_float(loads: list[float | None], exponent: float, digests: list[int]) -> None:
    candidates = rows(loads)
    digests[:2] = [0, 2**64 - 1]
    scores = Headroom(exponent).scores(candidates, digests[: len(candidates)])
    assert all(math.isfinite(score) for score in scores)


def test_the_extreme_digests_keep_their_order() -> None:
    candidates = rows([0.2, 0.2, 0.2, 0.9])
    low, middle, high, _ = Headroom().scores(candidates, [0, 2**63, 2**64 - 1, 7])
    assert low < middle < high
    assert high == math.log(2**64 * UNIT)


def test_an_outdated_row_weighs_like_an_unknown_one() -> None:
    stamps = {"w0": 10_000, "w1": 100_000, "w2": 99_000}
    candidates = [row(w, load, updated_at=stamps[w]) for w, load in (("w0", 0.0), ("w1", 0.2), ("w2", 0.4))]
    weights = Headroom().weights(candidates)
    assert weights[0] == pytest.approx((weights[1] + weights[2]) / 2)


def test_one_stamp_in_the_future_ages_nobody() -> None:
    """A row whose stamp runs ahead harms itself at most."""
    sound = [row(f"w{i}", i / 10, updated_at=100_000 + i) for i in range(5)]
    ahead = row("ahead", 0.5, updated_at=10_000_000)
    assert Headroom().loads([*sound, ahead]) == pytest.approx([0.0, 0.1, 0.2, 0.3, 0.4, 0.5])


@given(st.lists(st.none() | LOAD, min_size=2, max_size=9), st.randoms(use_true_random=False))
def test_the_mean_does_not_depend_on_the_rows_order(loads: list[float | None], rng: random.Random) -> None:
    candidates = [*rows(loads), row("unknown")]
    shuffled = rng.sample(candidates, len(candidates))
    weight = dict(zip(ids(candidates), Headroom().weights(candidates), strict=True))
    assert weight == dict(zip(ids(shuffled), Headroom().weights(shuffled), strict=True))
