"""Public complaints about load-aware choice elsewhere, as cases: the numbers a policy must reach, and what others do.

Shares are of first choices over 6,400 targets; the released client's `load_aware` stands beside ours where it is the
one that fails.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from mx_selector import top
from mx_wire import SourceInstanceRef
from tests.selector.rows import context, row, rows, targets, their_row, theirs

DRAWS = 6_400


def shares(candidates: Sequence[SourceInstanceRef], policy: str = "headroom") -> dict[str, float]:
    firsts = Counter(top(candidates, t, 1, policy)[0].worker_id for t in targets(DRAWS))
    return {c.worker_id: firsts[c.worker_id] / DRAWS for c in candidates}


def their_shares(candidates: Sequence[SourceInstanceRef]) -> dict[str, float]:
    selector, parsed = theirs("load_aware"), [their_row(c) for c in candidates]
    firsts = Counter(selector.order(parsed, context(t))[0].worker_id for t in targets(DRAWS // 4))
    return {c.worker_id: firsts[c.worker_id] * 4 / DRAWS for c in candidates}


def total(share: dict[str, float], fits: Callable[[str], bool]) -> float:
    return sum(value for worker_id, value in share.items() if fits(worker_id))


@pytest.mark.released
def test_a_measured_idle_seed_does_not_starve_fresh_sources() -> None:
    """volcano-sh/kthena #1040, #1546, #1554: unmeasured read as idle took all, read as half loaded got none."""
    candidates = [row("seed", 0.0), *rows([None] * 8)]
    ours, others = shares(candidates), their_shares(candidates)
    assert ours["seed"] <= 0.15
    assert min(value for worker_id, value in ours.items() if worker_id != "seed") > 0.05
    assert others["seed"] > 0.5
    assert shares(candidates, "rendezvous_hash")["seed"] == pytest.approx(1 / 9, abs=0.012)


@pytest.mark.released
@pytest.mark.parametrize(("load", "theirs_is"), [(0.2, 0.096), (0.9, 0.954)])
def test_invisible_sources_get_their_fair_half(load: float, theirs_is: float) -> None:
    """ai-dynamo/modelexpress #510: an unset float read as 0 made unmeasured sources win."""
    candidates = [*(row(f"unset{i}") for i in range(4)), *rows([load] * 4)]
    assert total(shares(candidates), lambda w: w.startswith("unset")) == pytest.approx(0.5, abs=0.05)
    assert total(their_shares(candidates), lambda w: w.startswith("unset")) == pytest.approx(theirs_is, abs=0.03)


@pytest.mark.released
def test_a_source_that_stopped_reporting_is_not_idle_for_ever() -> None:
    """kubernetes-sigs/gateway-api-inference-extension #1497: the last reading was believed without end."""
    now = 1_800_000_000_000
    candidates = [
        row("old", 0.0, updated_at=now - 80_000),
        row("a", 0.3, updated_at=now),
        row("b", 0.35, updated_at=now),
    ]
    assert shares(candidates)["old"] < 0.45
    assert shares(candidates)["old"] == pytest.approx(1 / 3, abs=0.03)
    assert their_shares(candidates)["old"] > 0.6


@pytest.mark.parametrize("policy", ["headroom", "load_aware"])
def test_a_saturated_source_is_left_alone(policy: str) -> None:
    """PrimeIntellect-ai/prime-rl #3255: hashing without load kept a saturated engine pinned."""
    candidates = [row("hot", 0.99), *rows([0.0, 0.02, 0.05])]
    assert shares(candidates, policy)["hot"] <= 0.02
    assert shares(candidates, "rendezvous_hash")["hot"] == pytest.approx(0.25, abs=0.02)


def simulated_mean(policy: str, loads: Sequence[float], pullers: int, rollouts: int = 400) -> tuple[float, float]:
    """Mean transfer time in units of an idle pull, and mean of the deepest pile, with fresh readings."""
    candidates, drawn = rows(loads), iter(targets(pullers * rollouts))
    cost, deepest = 0.0, 0
    for _ in range(rollouts):
        piles = Counter(top(candidates, next(drawn), 1, policy)[0].worker_id for _ in range(pullers))
        cost += sum(m * m * (1 + 5.72 * loads[int(w[1:])]) for w, m in piles.items())
        deepest += max(piles.values())
    return cost / pullers / rollouts, deepest / rollouts


def test_funnelling_onto_the_idle_is_right_when_the_rest_is_busy() -> None:
    """ai-dynamo/modelexpress #477, #510: with 6 of 8 at 0.9, both idle sources should take nearly everything."""
    loads = [0.9] * 6 + [0.0] * 2
    ours, _ = simulated_mean("headroom", loads, 8)
    aware, _ = simulated_mean("load_aware", loads, 8)
    blind, piles = simulated_mean("rendezvous_hash", loads, 8)
    best = min(ours, aware, blind)
    assert ours <= 1.1 * best
    assert blind > 1.8 * best
    assert 2.2 < piles < 3.0


def firsts(policy: str, candidates: Sequence[Any]) -> int:
    return len({top(candidates, t, 1, policy)[0].worker_id for t in targets(2_000)})


def test_a_fleet_uses_its_sources_instead_of_herding_onto_the_least_loaded() -> None:
    """Uniform loads on 512 sources: `load_aware` sends 2,000 targets to a few dozen of them, `headroom` to most."""
    candidates = rows([i / 512 for i in range(512)])
    assert firsts("load_aware", candidates) < 90
    assert firsts("headroom", candidates) > 250
