"""How long a target goes on seeing an old load: from a NIC that turns hot, or cool, to the listing that says so.

Runs the lab's fleet at the product's defaults (utilization window 3 s, scrape 5 s, list 2 s, heartbeat 30 s), lets each
source's traffic jump between 0.05 and 0.9 at random moments, and looks at the server's listing twice a second, as a
target would find it. Two things are timed: until a source that turned hot is listed as busy (0.7 or more), and until
the listed load is within 0.15 of the new level. A jump that is followed by another before that is not counted, and is
reported.

    .venv/bin/python bench/freshness.py [--seconds 240] [--scrape 5] [--interval 2] [--sources 8]
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import pathlib
import random
import tempfile
import time

import mx_wire
from mx_lab.processes import stopping
from mx_lab.run import Lab
from mx_lab.settings import Settings

IDLE, HOT = LEVELS = (0.05, 0.9)
NEAR = 0.15
BUSY = 0.7  # as dashboards and the forecast have it


@dataclasses.dataclass
class Jumps:
    """The jumps of one source, and when each was seen."""

    waiting: tuple[float, float] | None = None  # (when, new level)
    seen: list[float] = dataclasses.field(default_factory=list)
    turned_hot: float | None = None
    seen_hot: list[float] = dataclasses.field(default_factory=list)
    overtaken: int = 0

    def look(self, load: float, now: float) -> None:
        """Take what is listed now."""
        if self.turned_hot is not None and load >= BUSY:
            self.seen_hot.append(now - self.turned_hot)
            self.turned_hot = None
        if self.waiting is not None and abs(load - self.waiting[1]) <= NEAR:
            self.seen.append(now - self.waiting[0])
            self.waiting = None


async def jump(lab: Lab, name: str, jumps: Jumps, rnd: random.Random) -> None:
    while True:
        await asyncio.sleep(rnd.uniform(15, 45))
        jumps.overtaken += jumps.waiting is not None
        level = IDLE if lab.nics[name].level == HOT else HOT
        lab.nics[name].level = level
        jumps.waiting = (time.monotonic(), level)
        jumps.turned_hot = time.monotonic() if level == HOT else None


async def watch(lab: Lab, by_worker: dict[str, Jumps]) -> None:
    while True:
        for worker, row in lab.rows.items():
            load = mx_wire.read_load(row)
            if load is not None:
                by_worker[worker].look(load, time.monotonic())
        await asyncio.sleep(0.1)


async def measure(settings: Settings, seconds: float) -> list[Jumps]:
    rnd = random.Random(settings.seed)
    with tempfile.TemporaryDirectory() as folder, stopping([]) as processes:
        lab = Lab(settings, pathlib.Path(folder), processes, lambda *_: None)
        by_worker = {source.worker_id: Jumps() for source in lab.fleet}
        async with lab.up():
            await asyncio.sleep(2 * settings.heartbeat)
            tasks = [asyncio.create_task(watch(lab, by_worker))]
            for source in lab.fleet:
                lab.nics[source.name].level = IDLE
                tasks.append(asyncio.create_task(jump(lab, source.name, by_worker[source.worker_id], rnd)))
            await asyncio.sleep(seconds)
            for task in tasks:
                task.cancel()
    return list(by_worker.values())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=240)
    parser.add_argument("--scrape", type=float, default=5)
    parser.add_argument("--interval", type=float, help="the operator's; its own default where not given")
    parser.add_argument("--heartbeat", type=float, default=30)
    parser.add_argument("--sources", type=int, default=8)
    options = parser.parse_args()
    settings = Settings(
        sources=options.sources,
        busy_nic=0,
        busy_kv=0,
        heartbeat=options.heartbeat,
        scrape=options.scrape,
        interval=options.interval,
    )
    measured = asyncio.run(measure(settings, options.seconds))
    print("| what | seen | p50 s | p95 s | max s |\n|---|---|---|---|---|")
    for what, lags in (
        ("turned hot, listed as busy", [lag for jumps in measured for lag in jumps.seen_hot]),
        ("any jump, listed within 0.15", [lag for jumps in measured for lag in jumps.seen]),
    ):
        if not lags:
            print(f"{what}: never seen in the listing")
            return 1
        lags.sort()
        p50, p95 = (lags[min(len(lags) - 1, int(share * len(lags)))] for share in (0.5, 0.95))
        print(f"| {what} | {len(lags)} | {p50:.1f} | {p95:.1f} | {lags[-1]:.1f} |")
    print(f"overtaken by the next jump: {sum(jumps.overtaken for jumps in measured)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
