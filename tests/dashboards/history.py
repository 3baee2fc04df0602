"""A Prometheus with a past: samples and recording rules backfilled through promtool, then served and asked."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import pathlib
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any, Final

from tests.dashboards import openmetrics
from tests.parts import prometheus
from tests.parts.prometheus import Prometheus

ROOT: Final = pathlib.Path(__file__).parents[2]
RULES: Final = ROOT / "charts/mx-source-load/rules/mx-source-load.yaml"
#: When every history ends: a fixed moment, so that nothing depends on today.
END: Final = 1_768_446_900.0  # 2026-01-15 03:15:00 UTC
_KEEP: Final = ("--storage.tsdb.retention.time=100y", "--enable-feature=promql-per-step-stats")


@dataclasses.dataclass(frozen=True)
class History:
    """A running server and how to ask it as Grafana would."""

    server: Prometheus
    end: float = END

    def instant(self, expression: str, at: float | None = None) -> list[tuple[dict[str, str], float]]:
        """A vector at a time, the end when None."""
        answer = self.server.api("query", query=expression, time=str(self.end if at is None else at))
        if answer["resultType"] == "scalar":
            return [({}, float(answer["result"][1]))]
        return [(series["metric"], float(series["value"][1])) for series in answer["result"]]

    def range(self, expression: str, seconds: float = 900, step: float = 15, *, stats: bool = False) -> Any:
        """The answer to a range query that ends at the end."""
        parameters = {"query": expression, "start": str(self.end - seconds), "end": str(self.end), "step": str(step)}
        return self.server.api("query_range", **parameters, **({"stats": "all"} if stats else {}))


def promtool() -> str:
    """Debian's, which comes with its Prometheus."""
    found = shutil.which("promtool")
    assert found is not None, "no promtool: run scripts/setup"
    return found


def _run(*arguments: str | pathlib.Path) -> None:
    done = subprocess.run([promtool(), *map(str, arguments)], capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


@contextlib.contextmanager
def history(
    folder: pathlib.Path, samples: str, rules: float = 0.0, binary: pathlib.Path | None = None
) -> Iterator[History]:
    """Serve a past.

    Args:
        folder: For data and logs.
        samples: OpenMetrics text with absolute times that end at `END`.
        rules: Over how many seconds before the end the recording rules are evaluated; not at all when 0.
        binary: Which Prometheus answers; Debian's when None.
    """
    data = folder / "data"
    data.mkdir(parents=True)
    (folder / "samples.om").write_text(samples)
    _run("tsdb", "create-blocks-from", "openmetrics", folder / "samples.om", data)
    serve = functools.partial(prometheus.prometheus, folder, interval="1h", arguments=_KEEP)
    if rules:
        with serve() as server:
            span = (f"--start={END - rules:.0f}", f"--end={END + 30:.0f}", "--eval-interval=30s")
            backfill = ("tsdb", "create-blocks-from", "rules", *span, f"--url={server.url}")
            _run(*backfill, f"--output-dir={data}", RULES)
    with serve(binary=binary) as server:
        yield History(server)


def recorded_fleet(recording: str) -> str:
    """A recording moved so that its last sample is at `END`."""
    last = max(float(line.rpartition(" ")[2]) for line in recording.splitlines() if not line.startswith("#"))
    return openmetrics.moved(recording, END - last)
