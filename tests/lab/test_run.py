"""The whole path, with its real parts, from the door: it steers, and says why when it does not."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from mx_lab.processes import Process, wait_until

DOOR = str(pathlib.Path(sys.executable).with_name("mx-lab"))
#: Three heartbeats of five seconds: the shortest run that still shows everything.
SHORT = ["--heartbeat", "5", "--scrape", "2", "--targets", "1200", "--duration", "16"]

pytestmark = pytest.mark.timeout(240)


RUNS: dict[str, list[str]] = {
    "whole": [],
    "without operator": ["--without", "operator", "--duration", "10"],
    "without exporter": ["--without", "exporter", "--duration", "10"],
    "server drops loads": ["--server-drops-load", "--duration", "10"],
}


@dataclasses.dataclass(frozen=True)
class Ran:
    status: int
    printed: str
    report: dict[str, Any]

    def shares(self) -> dict[str, float]:
        return {result["policy"]: result["busy_share"] for result in self.report["policies"]}


def ran(folder: pathlib.Path, arguments: list[str]) -> Ran:
    command = [DOOR, "run", *SHORT, "--report", str(folder), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    file = folder / "report.json"
    return Ran(done.returncode, done.stdout + done.stderr, json.loads(file.read_text()) if file.exists() else {})


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ran]:
    """All runs, at the same time: they mostly wait, and must not meet."""
    with concurrent.futures.ThreadPoolExecutor(len(RUNS)) as threads:
        started = {name: threads.submit(ran, tmp_path_factory.mktemp("lab"), RUNS[name]) for name in RUNS}
        return {name: run.result() for name, run in started.items()}


def children_of(marker: str) -> list[int]:
    """Processes whose command line or environment holds `marker`."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if marker.encode() in (entry / "environ").read_bytes() and (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
    return found


def test_a_load_from_counters_and_engines_steers_targets_away(runs: dict[str, Ran]) -> None:
    run = runs["whole"]
    assert run.status == 0, run.printed
    assert "STEERED: load_aware sent" in run.printed
    assert run.shares()["load_aware"] <= 0.05
    assert 0.20 <= run.shares()["random"] <= 0.30
    assert all(result["starts"] == 1200 for result in run.report["policies"])
    assert run.report["transfer_time_below_random"] > 0.3
    assert run.report["evidence"]["load_supported"] == 1


def test_one_source_is_followed_from_its_counter_to_a_score(runs: dict[str, Ran]) -> None:
    hops = {hop["station"]: hop for hop in runs["whole"].report["hops"]}
    assert list(hops) == [
        "NIC counter",
        "NIC utilization",
        "source load",
        "Prometheus",
        "operator's write",
        "listed row",
        "score",
    ]
    for station in ("NIC counter", "NIC utilization", "source load", "Prometheus", "listed row"):
        assert hops[station]["value"] == pytest.approx(0.9, abs=0.1), station
    assert hops["NIC utilization"]["age"] < 2.5
    assert hops["Prometheus"]["age"] < 4
    assert hops["score"]["value"] < 0.2


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("without operator", "no operator runs: nobody writes loads to the server"),
        ("without exporter", "no exporter runs: nobody measures"),
        ("server drops loads", "0 of 8 listed rows carry a load"),
    ],
)
def test_without_a_part_it_fails_and_says_why(runs: dict[str, Ran], name: str, why: str) -> None:
    run = runs[name]
    assert run.status == 1, run.printed
    assert "NOT STEERED" in run.printed
    assert why in run.printed
    assert run.report["verdict"]["steered"] is False
    assert run.shares()["load_aware"] == run.shares()["rendezvous_hash"]  # exactly the baseline


@pytest.fixture
def running(tmp_path: pathlib.Path) -> Iterator[tuple[Process, str]]:
    """A lab with all its parts up, and what its children's environments carry."""
    marker = f"MX_LAB_TEST={tmp_path}"
    with Process(
        "mx-lab", [DOOR, "run", *SHORT], tmp_path / "log", env=os.environ | {"MX_LAB_TEST": str(tmp_path)}
    ) as process:
        process.wait_ready(lambda: "with a listed load" in process.output and len(children_of(marker)) >= 8, 60)
        yield process, marker


@pytest.mark.parametrize(
    "numbers", [[signal.SIGINT], [signal.SIGTERM], [signal.SIGINT] * 30], ids=["INT", "TERM", "INT again and again"]
)
def test_interrupted_it_stops_everything_and_says_so(
    running: tuple[Process, str], numbers: list[signal.Signals]
) -> None:
    """`timeout` and shells signal a process and its group: one wish may come several times."""
    process, marker = running
    for number in numbers:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, number)
        time.sleep(0.03)
    assert process.wait(20) == 130
    assert "interrupted; everything is stopped" in process.output
    assert children_of(marker) == []


def test_killed_it_leaves_no_process_behind(running: tuple[Process, str]) -> None:
    process, marker = running
    os.kill(process.pid, signal.SIGKILL)
    wait_until(lambda: not children_of(marker), 5, "the end of the lab's children")


def test_asked_to_it_stays_and_says_where_to_look(tmp_path: pathlib.Path) -> None:
    short = ["--heartbeat", "5", "--scrape", "1", "--targets", "40", "--duration", "2", "--stay"]
    with Process("mx-lab", [DOOR, "run", *short], tmp_path / "log") as process:
        process.wait_ready(lambda: "everything goes on until Ctrl-C" in process.output, 90)
        for name in ("operator", "exporter", "an engine"):
            address = re.search(rf"{name} (http://\S+)", process.output)
            assert address is not None
            with urllib.request.urlopen(address[1], timeout=5) as answer:
                assert answer.status == 200
        process.signal(signal.SIGINT)
        assert process.wait(20) in (0, 1)  # as the report says; so short a run shows little
    assert "STEERED" in process.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--sources", "0"], "argument --sources: '0' is not a whole number from 1 to 100000"),
        (["--heartbeat", "soon"], "argument --heartbeat: 'soon' is not a number of seconds from 5 to 600"),
        (["--without", "server"], "argument --without: invalid choice: 'server'"),
        (["--busy-nic", "8"], "mx-lab: 8 + 1 busy of 8 sources: at least one must be idle"),
        (["--report", "/proc/nowhere"], "mx-lab: --report /proc/nowhere: "),
    ],
)
def test_a_wrong_command_line_gets_one_clear_line_and_status_2(arguments: list[str], said: str) -> None:
    done = subprocess.run([DOOR, "run", *arguments], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith(said if said.startswith("mx-lab") else f"mx-lab: {said}")
    assert done.stderr.count("\n") == 1
