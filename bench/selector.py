"""How long an order takes: the released client's selectors against ours, in one run, as ratios.

    python -m bench.selector [--sizes 100 1000 10000 100000] [--json]

Both sides order the very same rows (the released client's messages) and must agree on the first three before they are
timed. Runs of the two alternate and the best of each counts, so that a noisy neighbour slows both or none. `hash` is
what hashing alone costs in Python, keys ready-made: the floor of any order that hashes every candidate.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import hashlib
import json
import platform
import random
import sys
import time
import types
from collections.abc import Callable, Sequence
from typing import Any, Final

from mx_selector import Target
from mx_selector.policies import registry
from tests.parts import released

SIZES: Final = (100, 1_000, 10_000, 100_000)
TARGET: Final = Target("meta-llama/Llama-3.1-70B-Instruct", "5f0c2a9e", 0)
SECONDS: Final = 0.3  # per side and cell, at least MIN_RUNS
MIN_RUNS: Final = 5


@dataclasses.dataclass(frozen=True)
class Cell:
    """One comparison: best seconds of each side."""

    n: int
    shape: str
    what: str
    ours: float
    theirs: float
    hash: float

    @property
    def ratio(self) -> float:
        return self.theirs / self.ours


def loads(shape: str, n: int) -> list[float | None]:
    rng = random.Random(n)
    if shape == "uniform":
        return [rng.random() for _ in range(n)]
    if shape == "bimodal":
        return [0.99 if rng.random() < 0.3 else rng.uniform(0.0, 0.05) for _ in range(n)]
    return [{"equal": 0.5, "idle": 0.0, "unknown": None}[shape]] * n


def listed(values: Sequence[float | None]) -> list[Any]:
    rng, message = random.Random(1), released.module("p2p_pb2").SourceInstanceRef
    rows = []
    for value in values:
        row = message(
            mx_source_id="0123456789abcdef",
            worker_id=f"{rng.getrandbits(32):08x}",
            model_name=TARGET.model_name,
            accelerator="cuda",
            updated_at=1_790_000_000_000 + rng.randrange(30_000),
        )
        if value is not None:
            row.source_load = value
        rows.append(row)
    return rows


def alternate(*runs: Callable[[], object]) -> list[float]:
    """Best seconds of each, taken in turns."""
    best = [float("inf")] * len(runs)
    spent, rounds = 0.0, 0
    while rounds < MIN_RUNS or spent < SECONDS * len(runs):
        for i, run in enumerate(runs):
            started = time.perf_counter()
            run()
            elapsed = time.perf_counter() - started
            best[i] = min(best[i], elapsed)
            spent += elapsed
        rounds += 1
    return best


def hash_only(rows: Sequence[Any]) -> Callable[[], object]:
    prefix = f"{TARGET.model_name}|{TARGET.worker_id}|0|"
    keys = [f"{prefix}{r.mx_source_id}|{r.worker_id}|{r.worker_rank}".encode() for r in rows]
    blake2b = hashlib.blake2b
    return lambda: [blake2b(key, digest_size=8).digest() for key in keys]


def compare(n: int, shape: str) -> list[Cell]:
    rows = listed(loads(shape, n))
    selection = released.module("source_selection")
    selectors = {"load_aware": selection.LoadAwareSelector, "rendezvous_hash": selection.RendezvousHashSelector}
    context = types.SimpleNamespace(
        identity=types.SimpleNamespace(model_name=TARGET.model_name), worker_id=TARGET.worker_id, worker_rank=0
    )
    cells = []
    for name in ("load_aware", "rendezvous_hash", "headroom"):
        theirs = selectors["load_aware" if name == "headroom" else name]()
        ours: Any = registry.resolve(name)
        if name != "headroom":
            assert ours.order(rows, TARGET) == theirs.order(rows, context)
        assert ours.top(rows, TARGET, 3) == ours.order(rows, TARGET)[:3]
        released_run = functools.partial(theirs.order, rows, context)
        whats = {
            "top 3": functools.partial(ours.top, rows, TARGET, 3),
            "full order": functools.partial(ours.order, rows, TARGET),
        }
        for what, run in whats.items():
            best = alternate(run, released_run, hash_only(rows))
            cells.append(Cell(n, shape, f"{name}, {what}", *best))
    return cells


def table(cells: Sequence[Cell]) -> str:
    lines = [
        "| candidates | loads | what | released | ours | times faster | ours / hash alone |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {c.n:,} | {c.shape} | {c.what} | {pretty(c.theirs)} | {pretty(c.ours)} | {c.ratio:.1f} | "
        f"{c.ours / c.hash:.2f} |"
        for c in cells
    ]
    return "\n".join(lines)


def pretty(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.0f} us"


#: (policy and what, candidates, shapes, least ratio to the released client's load_aware)
TARGETS: Final = (
    ("load_aware, top 3", 1_000, ("uniform", "bimodal"), 3.0),
    ("load_aware, top 3", 10_000, ("uniform", "bimodal"), 6.0),
    ("load_aware, top 3", 1_000, ("equal",), 2.5),
    ("load_aware, top 3", 10_000, ("equal",), 2.5),
    ("headroom, top 3", 1_000, ("uniform", "bimodal", "equal"), 2.2),
    ("headroom, top 3", 10_000, ("uniform", "bimodal", "equal"), 2.2),
)


def missed(cells: Sequence[Cell]) -> list[str]:
    return [
        f"{c.what}, {c.n} {c.shape}: {c.ratio:.2f} times, wanted {least}"
        for what, n, shapes, least in TARGETS
        for c in cells
        if c.what == what and c.n == n and c.shape in shapes and c.ratio < least
    ]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench.selector", description="Time of an order, ours and the released one.")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, metavar="N")
    parser.add_argument("--shapes", nargs="+", default=["uniform", "bimodal", "equal"], metavar="SHAPE")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args(argv)
    cells = [cell for n in arguments.sizes for shape in arguments.shapes for cell in compare(n, shape)]
    if arguments.json:
        print(json.dumps([{**dataclasses.asdict(c), "ratio": c.ratio} for c in cells], indent=1))
    else:
        print(f"Python {platform.python_version()}, {platform.machine()}; best of alternating runs\n\n{table(cells)}")
    for line in missed(cells):
        print("missed:", line, file=sys.stderr)
    return 1 if missed(cells) else 0


if __name__ == "__main__":
    sys.exit(main())
