"""Records the fleet that the dashboards are tested and pictured on: `python -m tests.dashboards.record`.

The lab runs with a small rollout, five calm minutes, a larger rollout and two calm minutes, 13 in all; what its
Prometheus scraped becomes `fleet.om.gz`, OpenMetrics whose first sample is at 0 s. Recording again is
needed only when metrics change.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import gzip
import os
import pathlib
import shutil
import sys
import tempfile
import time
from typing import Final

from mx_lab import run as running
from mx_lab.processes import stopping
from mx_lab.settings import Settings
from mx_lab.targets import Targets
from tests.dashboards import openmetrics
from tests.parts import prometheus

RECORDING: Final = pathlib.Path(__file__).with_name("fleet.om.gz")
SETTINGS: Final = Settings(starts=240, duration=240.0, heartbeat=15.0, scrape=10.0, weights=20e9)
FIRST: Final = dataclasses.replace(SETTINGS, starts=60, duration=60.0)
CALM: Final = 300.0
AFTER: Final = 120.0


class TwoRollouts(running.Lab):
    """The lab with an earlier, smaller rollout, and calm around the larger one."""

    async def _warm_up(self) -> None:
        await super()._warm_up()
        self.targets = Targets(FIRST, self.fleet, self.nics, self.parts.addresses.server)
        await self.targets.run()
        self.targets.close()
        await asyncio.sleep(CALM)

    async def _look_back(self) -> running.Outcome:
        await asyncio.sleep(AFTER)
        return await super()._look_back()


async def run(folder: pathlib.Path) -> None:
    """Run it with its files in `folder`, and with all that the operator can show."""
    os.environ["MX_OPERATOR_WRITTEN_METRICS"] = "on"
    with stopping([]) as processes:
        lab = TwoRollouts(SETTINGS, folder, processes, lambda _phase, _sources: None)
        try:
            await lab.run(lambda _outcome: None)
        finally:
            for sysfs in lab.sysfs:
                sysfs.close()


def recorded(data: pathlib.Path, folder: pathlib.Path) -> str:
    """All samples of a Prometheus' data folder, zero being the first one's time."""
    shutil.copytree(data, folder / "data", ignore=shutil.ignore_patterns("lock"))
    with prometheus.prometheus(folder, arguments=["--storage.tsdb.retention.time=100y"], interval="1h") as server:
        return openmetrics.dump(server, time.time())


def main() -> int:
    """Record, or only turn a kept lab's data into a recording."""
    parser = argparse.ArgumentParser("python -m tests.dashboards.record", description=__doc__)
    parser.add_argument("--keep", type=pathlib.Path, help="folder for the run's files (default: a temporary one)")
    parser.add_argument("--from", dest="kept", type=pathlib.Path, help="a folder kept by an earlier run: run nothing")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.kept or arguments.keep or pathlib.Path(temporary) / "lab"
        if arguments.kept is None:
            folder.mkdir(parents=True, exist_ok=True)
            asyncio.run(run(folder.resolve()))
        text = recorded(folder.resolve() / "data", pathlib.Path(temporary) / "prometheus")
    RECORDING.write_bytes(gzip.compress(text.encode(), 9, mtime=0))
    sys.stdout.write(f"{RECORDING}: {RECORDING.stat().st_size / 1e3:.0f} kB, {text.count(chr(10))} samples\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
