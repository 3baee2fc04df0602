"""What the released client gets wrong, each shown on it and then on ours.

The first half of each test asserts the defect, so that a release that mends it is noticed.
"""

from __future__ import annotations

import itertools
import logging
import math
import random
from collections import Counter
from typing import Any

import pytest

from mx_selector import rank, resolve, settings, top
from mx_selector.policies.headroom import Headroom
from mx_selector.policies.load_aware import LoadAware
from mx_wire import SourceInstanceRef
from tests.selector.rows import TARGET, context, ids, row, rows, targets, their_row, theirs

pytestmark = pytest.mark.released
DETERMINISTIC = ("rendezvous_hash", "load_aware", "headroom", "topology_aware")


def their_ids(name: str, candidates: list[SourceInstanceRef]) -> list[str]:
    return ids(theirs(name).order([their_row(r) for r in candidates], context(TARGET)))


@pytest.mark.parametrize("weight", ["1e15", "1e17", "1e300"])
def test_a_huge_weight_leaves_equal_loads_in_rendezvous_order(weight: str, monkeypatch: pytest.MonkeyPatch) -> None:
    candidates = rows([0.5] * 40)
    baseline = ids(rank(candidates, TARGET, "rendezvous_hash"))
    monkeypatch.setenv("MX_P2P_LOAD_WEIGHT", weight)
    released = their_ids("load_aware", candidates)
    assert released != baseline
    if float(weight) >= 1e17:
        assert released == ids(candidates), "every client picks the server's first row"
    assert ids(rank(candidates, TARGET, "load_aware")) == baseline
    assert ids(rank(candidates, TARGET, "headroom")) == baseline
    assert ids(rank(candidates, TARGET, LoadAware(float(weight)))) == baseline, "even unclamped"


def first_share(order: Any, candidates: list[Any], worker_id: str, draws: int = 4_000) -> float:
    return float(sum(order(candidates, t)[0].worker_id == worker_id for t in targets(draws)) / draws)


def test_a_nan_load_is_unknown_not_idle() -> None:
    candidates = [row("nan", math.nan), *rows([0.3] * 7)]
    released = theirs("load_aware")
    theirs_share = first_share(lambda c, t: released.order(c, context(t)), [their_row(r) for r in candidates], "nan")
    assert theirs_share > 0.40
    assert first_share(lambda c, t: top(c, t, 1, "headroom"), candidates, "nan") == pytest.approx(0.125, abs=0.015)
    assert first_share(lambda c, t: top(c, t, 1, "load_aware"), candidates, "nan") < 0.125, "as any unknown source"
    unknown = [row("nan"), *candidates[1:]]
    assert ids(rank(candidates, TARGET)) == ids(rank(unknown, TARGET))


def test_unknown_has_one_meaning_inside_a_tier_too(monkeypatch: pytest.MonkeyPatch) -> None:
    unknown = row("unknown")
    monkeypatch.setenv("MX_P2P_LOAD_WEIGHT", "1")
    apart = [theirs(name).score(their_row(unknown), context(TARGET)) for name in ("topology_aware", "load_aware")]
    assert apart[0][1] - apart[1] == pytest.approx(0.5)
    candidates = [unknown, *rows([0.1, 0.4, 0.6, 0.9])]
    for target in targets(50):
        assert ids(rank(candidates, target, "topology_aware")) == ids(rank(candidates, target, "load_aware"))


@pytest.mark.parametrize("bad", ["bad", "nan", "inf", ""])
def test_an_unparseable_weight_switches_no_blend_on(bad: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MX_P2P_LOAD_WEIGHT", bad)
    assert theirs("topology_aware").w_load == 1.0
    policy: Any = resolve("topology_aware")
    assert policy.tiebreak.name == "rendezvous_hash"
    assert LoadAware.from_environment({"MX_P2P_LOAD_WEIGHT": bad}).weight == 1.0


def test_an_unparseable_weight_says_so_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(settings, "_said", set())
    monkeypatch.setenv("MX_P2P_LOAD_WEIGHT", "much")
    caplog.set_level(logging.WARNING, logger="modelexpress")
    for _ in range(3):
        theirs("load_aware")
    assert len(caplog.records) == 3
    caplog.clear()
    for _ in range(3):
        rank(rows([0.1]), TARGET)
    assert [r.message for r in caplog.records] == ["MX_P2P_LOAD_WEIGHT='much' is not a finite number; using 1"]


def collision() -> list[SourceInstanceRef]:
    """Two sources whose keys are the same text."""
    return [SourceInstanceRef(mx_source_id="a|b", worker_id="c"), SourceInstanceRef(mx_source_id="a", worker_id="b|c")]


def duplicate() -> list[SourceInstanceRef]:
    """One source twice, as two listings of different age would have it."""
    return [row("w", 0.5, updated_at=1_000), row("w", 0.5, updated_at=2_000)]


@pytest.mark.parametrize("pair", [collision, duplicate])
def test_ties_do_not_follow_the_servers_row_order(pair: Any) -> None:
    both = [list(p) for p in itertools.permutations(pair())]
    one, two = (
        [r.SerializeToString() for r in theirs("load_aware").order([their_row(r) for r in p], context(TARGET))]
        for p in both
    )
    assert one != two
    for policy in DETERMINISTIC:
        assert len({tuple(r.SerializeToString() for r in rank(p, TARGET, policy)) for p in both}) == 1
        assert len({top(p, TARGET, 1, policy)[0].SerializeToString() for p in both}) == 1


def test_of_a_duplicate_the_newer_row_comes_first() -> None:
    assert rank(duplicate(), TARGET)[0].updated_at == 2_000


@pytest.mark.parametrize("policy", DETERMINISTIC)
def test_a_hundred_shuffles_give_one_order(policy: str) -> None:
    rng = random.Random(3)
    candidates = [*rows([0.5] * 6), *rows([None] * 3), *collision(), *duplicate(), row("x", math.nan)]
    orders = Counter(
        tuple(r.SerializeToString() for r in rank(rng.sample(candidates, len(candidates)), TARGET, policy))
        for _ in range(100)
    )
    assert len(orders) == 1


def test_the_exponent_of_headroom_ends_before_underflow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MX_P2P_LOAD_WEIGHT", "1000")
    policy: Any = resolve("headroom")
    assert policy.exponent == 16.0
    assert len(policy.order(rows([0.0, 1.0, 0.5, None]), TARGET)) == 4
    assert min(Headroom(16.0).weights(rows([0.0, 1.0]))) > 0.0
