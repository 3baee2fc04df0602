"""Which policy gives the shortest pulls? A Monte-Carlo over load shapes, staleness of the readings and fleet sizes.

    python -m bench.selection_quality [--quick] [--plots docs/images]

The model: a pull takes `m * (1 + 5.72 x)` units, where `m` targets pull from the source at once and `x` is its true
load (6.66 times slower at 0.99, the contention published with `source_load`). A target sees each load `S` seconds late:
the reading equals the truth with probability exp(-S/60), else it is an independent draw of the same shape. `M` targets
start at once among `N` sources and know nothing of each other. Policies are the project's own, called as a target calls
them; loads and names come from fixed seeds, the same for every policy. Figures are means over rollouts, relative to
`rendezvous_hash`, whose first choices are as those of `random`.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import itertools
import json
import math
import pathlib
import random
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from mx_selector import Target
from mx_selector.digests import digests
from mx_selector.policies.base import ScoredPolicy
from mx_selector.policies.baselines import RendezvousHash
from mx_selector.policies.headroom import Headroom
from mx_selector.policies.load_aware import LoadAware
from mx_wire import SourceInstanceRef

CONTENTION: Final = 5.66 / 0.99
MEMORY_SECONDS: Final = 60.0
POLICIES: Final[Mapping[str, ScoredPolicy]] = {
    "rendezvous_hash": RendezvousHash(),
    "load_aware": LoadAware(),
    "load_aware, weight 0.25": LoadAware(0.25),
    "headroom": Headroom(),
    "headroom, exponent 2": Headroom(2.0),
}
BASELINE: Final = "rendezvous_hash"
STALENESS: Final = (0, 5, 15, 30, 90)
SIZES: Final = (8, 32, 128)


def bimodal(rng: random.Random) -> float:
    return 0.99 if rng.random() < 0.3 else rng.uniform(0.0, 0.05)


def uniform(rng: random.Random) -> float:
    return rng.random()


def middling(rng: random.Random) -> float:
    return 0.6 if rng.random() < 0.3 else rng.uniform(0.0, 0.3)


def plateau(rng: random.Random) -> float:
    return rng.uniform(0.85, 0.95)


def idle(rng: random.Random) -> float:
    del rng
    return 0.0


SHAPES: Final[Mapping[str, Callable[[random.Random], float]]] = {
    "bimodal": bimodal,
    "uniform": uniform,
    "middling": middling,
    "plateau": plateau,
    "idle": idle,
}


@dataclasses.dataclass(frozen=True)
class Cell:
    """One situation: load shape, seconds that readings are late, sources, targets that start at once."""

    shape: str
    staleness: float
    sources: int
    targets: int


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What one policy made of a cell, over all its rollouts.

    Attributes:
        mean: Mean time of a pull, in idle pulls.
        p99: The time that 99 of 100 pulls stay below.
        on_busy: Share of pulls from sources whose true load is above 0.5.
        deepest: Mean of the most pulls on one source.
    """

    mean: float
    p99: float
    on_busy: float
    deepest: float


def rollouts_of(cell: Cell, quick: bool) -> int:
    """Enough pulls for a mean within a few percent, and no more."""
    least = 4 if quick or cell.sources * cell.targets > 100_000 else 12
    return max(least, (400 if quick else 3_000) // cell.targets)


def play(cell: Cell, rollouts: int) -> dict[str, Outcome]:
    """Every policy on the same rollouts: each is drawn once and shown to all."""
    rng = random.Random(f"{cell.shape}/{cell.staleness}/{cell.sources}/{cell.targets}")
    times: dict[str, list[float]] = {name: [] for name in POLICIES}
    busy: Counter[str] = Counter()
    deepest: Counter[str] = Counter()
    for _ in range(rollouts):
        truth = [SHAPES[cell.shape](rng) for _ in range(cell.sources)]
        seen = [stale(x, cell, rng) for x in truth]
        choices = first_choices(seen, cell.targets, rng)
        for name, firsts in choices.items():
            piles = Counter(firsts)
            times[name] += [piles[i] * (1.0 + CONTENTION * truth[i]) for i in firsts]
            busy[name] += sum(truth[i] > 0.5 for i in firsts)
            deepest[name] += max(piles.values())
    pulls = rollouts * cell.targets
    return {
        name: Outcome(
            statistics.fmean(t), sorted(t)[math.ceil(0.99 * len(t)) - 1], busy[name] / pulls, deepest[name] / rollouts
        )
        for name, t in times.items()
    }


def stale(truth: float, cell: Cell, rng: random.Random) -> float:
    kept = rng.random() < math.exp(-cell.staleness / MEMORY_SECONDS)
    other = SHAPES[cell.shape](rng)
    return truth if kept else other


def first_choices(seen: Sequence[float], targets: int, rng: random.Random) -> dict[str, list[int]]:
    """Index of the source each target would try first, per policy; each pair is hashed once for all policies."""
    rows = [
        SourceInstanceRef(mx_source_id="s", worker_id=f"{rng.getrandbits(32):08x}", source_load=load) for load in seen
    ]
    chosen: dict[str, list[int]] = {name: [] for name in POLICIES}
    for _ in range(targets):
        hashes = digests(rows, Target("m", f"{rng.getrandbits(32):08x}"))
        for name, policy in POLICIES.items():
            scores = policy.scores(rows, hashes)
            chosen[name].append(max(range(len(rows)), key=lambda i: (scores[i], hashes[i])))
    return chosen


def cells(quick: bool) -> list[Cell]:
    sizes = (8, 32) if quick else SIZES
    staleness = (0, 30) if quick else STALENESS
    grid = [
        Cell(shape, s, n, m)
        for shape, s, n in itertools.product(SHAPES, staleness, sizes)
        for m in sorted({1, max(1, n // 8), n // 2, n})
    ]
    large = [Cell(shape, 30, 512, m) for shape in ("bimodal", "uniform") for m in (64, 512)]
    return grid if quick else [*grid, *large]


Results = dict[Cell, dict[str, Outcome]]


def ratio(results: Results, cell: Cell, name: str, what: str = "mean") -> float:
    outcome = results[cell]
    return float(getattr(outcome[name], what) / getattr(outcome[BASELINE], what))


def regret(results: Results, name: str, fits: Callable[[Cell], bool]) -> float:
    """Geometric mean, over the cells, of this policy's mean time to the best policy's there."""
    logs = [
        math.log(outcome[name].mean / min(o.mean for o in outcome.values()))
        for cell, outcome in results.items()
        if fits(cell)
    ]
    return math.exp(statistics.fmean(logs))


def realistic(cell: Cell) -> bool:
    """Readings as old as heartbeats make them, and more than a few targets."""
    return 15 <= cell.staleness <= 30 and cell.targets >= cell.sources / 8 and cell.targets > 1


def summary(results: Results) -> str:
    lines = [
        "| policy | regret, all | few targets | many targets | readings 15 to 30 s old | worst against the baseline |",
        "|---|---|---|---|---|---|",
    ]
    slices: Iterable[Callable[[Cell], bool]] = (
        lambda c: True,
        lambda c: c.targets <= max(1, c.sources // 8),
        lambda c: c.targets >= c.sources // 2,
        realistic,
    )
    slices = list(slices)
    for name in POLICIES:
        figures = [f"{regret(results, name, fits):.2f}" for fits in slices]
        worst = max(ratio(results, cell, name) for cell in results)
        lines.append(f"| {name} | {' | '.join(figures)} | {worst:.2f} |")
    return "\n".join(lines)


def table(results: Results, n: int) -> str:
    """Mean and p99 against the baseline, with as many targets as sources."""
    chosen = [cell for cell in results if cell.sources == n and cell.targets == n]
    names = [name for name in POLICIES if name != BASELINE]
    lines = [f"| {n} sources, {n} targets | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for cell in chosen:
        figures = [f"{ratio(results, cell, m):.2f} / {ratio(results, cell, m, 'p99'):.2f}" for m in names]
        lines.append(f"| {cell.shape}, {cell.staleness:g} s old | {' | '.join(figures)} |")
    return "\n".join(lines)


def missed(results: Results) -> list[str]:
    """What must hold for `headroom` to be worth its name."""
    equal = [ratio(results, c, "headroom") for c in results if c.shape == "idle"]
    claims = {
        "the baseline exactly when all loads are the same": all(r == 1.0 for r in equal),
        "the least regret of the single-weight policies in the realistic cells": regret(results, "headroom", realistic)
        <= min(regret(results, name, realistic) for name in (BASELINE, "load_aware")),
        "never 60 % worse than the baseline": max(ratio(results, c, "headroom") for c in results) < 1.6,
    }
    return [claim for claim, holds in claims.items() if not holds]


def plot(results: Results, folder: pathlib.Path) -> list[pathlib.Path]:
    """One figure per load shape: mean time against staleness, for few and for many targets."""
    import matplotlib as mpl  # type: ignore[import-not-found, unused-ignore]

    mpl.use("agg")
    from matplotlib import pyplot  # type: ignore[import-not-found, unused-ignore]

    made = []
    folder.mkdir(parents=True, exist_ok=True)
    for shape in SHAPES:
        figure, axes = pyplot.subplots(1, 3, figsize=(12, 3.6), sharey=True, layout="constrained")
        for axis, (label, share) in zip(axes, {"1 target": 0, "N/8 targets": 8, "N targets": 1}.items(), strict=True):
            _draw(axis, results, shape, share)
            axis.set_title(f"{label}, N = {_largest(results)} sources", fontsize=10)
        axes[0].set_ylabel("mean time of a pull / rendezvous_hash")
        axes[0].legend(fontsize=8, frameon=False)
        figure.suptitle(f"loads: {shape}", fontsize=11)
        path = folder / f"selection-{shape}.png"
        figure.savefig(path, dpi=110, metadata={"Software": ""})
        pyplot.close(figure)
        made.append(path)
    return made


def _largest(results: Results) -> int:
    sizes = sorted({cell.sources for cell in results})
    return 128 if 128 in sizes else sizes[-1]


def _draw(axis: Any, results: Results, shape: str, share: int) -> None:
    n = _largest(results)
    targets = 1 if share == 0 else n // share
    chosen = sorted(
        (c for c in results if (c.shape, c.sources, c.targets) == (shape, n, targets)), key=lambda c: c.staleness
    )
    for name, style in zip(POLICIES, ("k--", "o-", "^:", "s-", "v:"), strict=True):
        axis.plot([c.staleness for c in chosen], [ratio(results, c, name) for c in chosen], style, ms=4, label=name)
    axis.set_xlabel("age of the readings, s")
    axis.set_yscale("log", base=2)
    axis.yaxis.set_major_formatter(lambda y, _: f"{y:g}")
    axis.grid(alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench.selection_quality", description="Monte-Carlo of the policies.")
    parser.add_argument("--quick", action="store_true", help="a tenth of the work, coarser figures")
    parser.add_argument("--plots", type=pathlib.Path, metavar="FOLDER", help="draw a figure per load shape")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write every cell")
    arguments = parser.parse_args(argv)
    if arguments.plots and importlib.util.find_spec("matplotlib") is None:
        parser.error("--plots needs matplotlib: pip install 'mx-source-load[bench]'")
    results = {cell: play(cell, rollouts_of(cell, arguments.quick)) for cell in cells(arguments.quick)}
    print(summary(results), table(results, 32), sep="\n\n")
    if not arguments.quick:
        print(f"\n{table(results, 128)}\n\n{table(results, 512)}")
    if arguments.json:
        content = [dataclasses.asdict(c) | {n: dataclasses.asdict(o) for n, o in r.items()} for c, r in results.items()]
        arguments.json.write_text(json.dumps(content, indent=1))
    if arguments.plots:
        for path in plot(results, arguments.plots):
            print("drew", path, file=sys.stderr)
    for claim in missed(results):
        print("does not hold:", claim, file=sys.stderr)
    return 1 if missed(results) else 0


if __name__ == "__main__":
    sys.exit(main())
