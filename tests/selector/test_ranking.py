"""`rank` and `top`: laws of order, odd candidates, broken policies."""

from __future__ import annotations

import logging
import math
import random
import types
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mx_selector
from mx_selector import Target, rank, register, top
from mx_selector import settings as environment
from mx_selector.policies import registry
from mx_selector.policies.load_aware import LoadAware
from tests.selector.rows import TARGET, ids, row, rows, targets

DETERMINISTIC = ("rendezvous_hash", "load_aware", "headroom", "topology_aware")


@pytest.fixture(autouse=True)
def _fresh_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "_said", set())


@pytest.fixture
def policy_name() -> Iterator[str]:
    yield "mine"
    registry._factories.pop("mine", None)


def plain(worker_id: Any, **fields: Any) -> Any:
    return types.SimpleNamespace(**{"mx_source_id": "s", "worker_id": worker_id, "worker_rank": 0, **fields})


WEIGHTS = st.sampled_from([0.0, 1e-9, 0.25, 1.0, 4.0, 1e6])
SHAPES = st.sampled_from(
    [
        lambda rng: rng.random(),
        lambda rng: 0.99 if rng.random() < 0.3 else rng.uniform(0.0, 0.05),
        lambda rng: rng.choice((0.0, 0.25, 0.5)),
        lambda rng: 0.5,
        lambda rng: rng.choice((None, 0.0, 1.0, math.nan)),
    ]
)


@settings(max_examples=120, deadline=None)
@given(SHAPES, st.integers(0, 700), st.integers(-1, 8), WEIGHTS, st.integers())
def test_top_is_the_beginning_of_rank_however_many_are_pruned(
    shape: Any, count: int, k: int, weight: float, seed: int
) -> None:
    rng = random.Random(seed)
    candidates = rows([shape(rng) for _ in range(count)])
    candidates += rng.sample(candidates, min(3, count))  # duplicates tie at every edge
    for policy in (LoadAware(weight), "headroom", "rendezvous_hash"):
        assert top(candidates, TARGET, k, policy) == rank(candidates, TARGET, policy)[: max(0, k)]


def test_pruning_hashes_few_of_many(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed = []
    original = mx_selector.digests.digests

    def counting(candidates: Any, target: Target) -> Any:
        hashed.append(len(candidates))
        return original(candidates, target)

    monkeypatch.setattr(mx_selector.digests, "digests", counting)
    rng = random.Random(1)
    top(rows([rng.random() for _ in range(10_000)]), TARGET, 3, "load_aware")
    assert 3 <= sum(hashed) < 1_000


@settings(max_examples=100, deadline=None)
@given(st.lists(st.none() | st.floats(width=32), max_size=40), st.randoms(use_true_random=False))
def test_the_order_does_not_depend_on_the_input_order(loads: list[float | None], rng: random.Random) -> None:
    candidates = rows(loads)
    shuffled = rng.sample(candidates, len(candidates))
    for policy in DETERMINISTIC:
        assert ids(rank(candidates, TARGET, policy)) == ids(rank(shuffled, TARGET, policy))


@pytest.mark.parametrize("policy", ["random", *DETERMINISTIC])
def test_rank_gives_the_same_objects_back(policy: str) -> None:
    candidates = rows([0.1, None, 0.9])
    ranked = rank(iter(candidates), TARGET, policy)
    assert sorted(map(id, ranked)) == sorted(map(id, candidates))
    assert rank([], TARGET, policy) == []
    assert top([], TARGET, 3, policy) == []
    assert top(candidates, TARGET, 0, policy) == []


@pytest.mark.parametrize("policy", DETERMINISTIC)
def test_without_any_load_every_policy_is_rendezvous(policy: str) -> None:
    candidates = rows([None] * 200)
    for target in targets(20):
        assert rank(candidates, target, policy) == rank(candidates, target, "rendezvous_hash")


def test_random_is_another_order_each_time_and_leaves_the_applications_seed_alone() -> None:
    random.seed(1)
    first = random.random()
    random.seed(1)
    orders = {tuple(ids(rank(rows([None] * 10), TARGET, "random"))) for _ in range(20)}
    assert len(orders) > 15
    assert random.random() == first


@pytest.mark.parametrize("policy", DETERMINISTIC)
def test_plain_objects_rank_like_rows(policy: str) -> None:
    loads = [0.9, None, 0.0, 0.3, 0.5]
    objects = [plain(f"w{i}", source_load=load) for i, load in enumerate(loads)]
    assert ids(rank(objects, TARGET, policy)) == ids(rank(rows(loads), TARGET, policy))
    bare = [plain(f"w{i}") for i in range(5)]
    assert ids(rank(bare, TARGET, policy)) == ids(rank(rows([None] * 5), TARGET, policy))


@pytest.mark.parametrize("odd", ["0.3", b"0.3", object(), [], 10**400, True, 1, math.inf, -math.inf])
@pytest.mark.parametrize("policy", DETERMINISTIC)
def test_an_odd_load_harms_its_own_row_at_most(odd: Any, policy: str, caplog: pytest.LogCaptureFixture) -> None:
    candidates = [plain(f"w{i}", source_load=i / 10) for i in range(5)]
    others = [w for w in ids(rank([*candidates, plain("odd")], TARGET, policy)) if w != "odd"]
    with_odd = ids(rank([*candidates, plain("odd", source_load=odd, updated_at=odd)], TARGET, policy))
    assert sorted(with_odd) == ["odd", *(f"w{i}" for i in range(5))]
    assert [w for w in with_odd if w != "odd"] == others
    assert not caplog.records


@pytest.mark.parametrize("policy", DETERMINISTIC)
def test_a_row_that_cannot_be_hashed_goes_last_and_the_others_keep_their_order(
    policy: str, caplog: pytest.LogCaptureFixture
) -> None:
    sound = [plain(f"w{i}", source_load=i / 10) for i in range(5)]
    nameless, surrogate = types.SimpleNamespace(source_load=0.0), plain("\udc80")
    ranked = rank([nameless, *sound, surrogate], TARGET, policy)
    assert ranked == [*rank(sound, TARGET, policy), nameless, surrogate]
    assert top([nameless, *sound], TARGET, 2, policy) == rank(sound, TARGET, policy)[:2]
    assert [r.levelno for r in caplog.records] == [logging.WARNING]


class Broken:
    name = "broken"

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def order(self, candidates: Any, target: Target) -> Any:
        raise self.error


def test_a_policy_that_raises_means_the_baseline_and_one_line(caplog: pytest.LogCaptureFixture) -> None:
    candidates = rows([0.9, 0.1, 0.5])
    for _ in range(3):
        assert rank(candidates, TARGET, Broken(RuntimeError("no"))) == rank(candidates, TARGET, "rendezvous_hash")
    assert [r.message for r in caplog.records] == [
        "source selector 'broken' failed (RuntimeError('no')); falling back to the baseline order"
    ]
    with pytest.raises(KeyboardInterrupt):
        rank(candidates, TARGET, Broken(KeyboardInterrupt()))


def test_a_policy_that_loses_candidates_is_broken() -> None:
    class Forgetful:
        name = "forgetful"

        def order(self, candidates: Any, target: Target) -> Any:
            return candidates[:1]

    candidates = rows([0.9, 0.1, 0.5])
    assert rank(candidates, TARGET, Forgetful()) == rank(candidates, TARGET, "rendezvous_hash")


def test_unknown_names_and_broken_factories_are_random_and_say_so_once(
    policy_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    def factory(_: Any) -> Any:
        raise ValueError("bad")

    register(policy_name, factory)
    for name in (policy_name, "LOAD_AWARE", " load_aware"):
        for _ in range(2):
            assert mx_selector.resolve(name).name == "random"
    assert len(caplog.records) == 3
    assert "Known: ['headroom', 'load_aware', 'mine'" in caplog.records[1].message


def test_a_users_policy_is_found_by_name_and_needs_no_top(policy_name: str) -> None:
    class ByName:
        name = "mine"

        def order(self, candidates: Any, target: Target) -> Any:
            return sorted(candidates, key=lambda c: c.worker_id)

    register(policy_name, lambda _: ByName())
    candidates = rows([None] * 5)[::-1]
    assert ids(rank(candidates, TARGET, "mine")) == ["w0", "w1", "w2", "w3", "w4"]
    assert ids(top(candidates, TARGET, 2, "mine")) == ["w0", "w1"]
    assert "mine" in mx_selector.names()


def test_the_public_names_are_these() -> None:
    assert sorted(mx_selector.__all__) == [
        "Attempt",
        "Candidate",
        "Policy",
        "ScoredPolicy",
        "Selection",
        "Target",
        "compatible",
        "names",
        "rank",
        "register",
        "resolve",
        "select_from",
        "select_sources",
        "top",
    ]
    assert all(hasattr(mx_selector, name) for name in mx_selector.__all__)


def test_a_zero_weight_is_rendezvous() -> None:
    candidates = rows([0.9, 0.1, 0.5, None])
    for target in targets(20):
        assert rank(candidates, target, LoadAware(0.0)) == rank(candidates, target, "rendezvous_hash")
    assert row("w").worker_id == "w"
