"""The whole path, with its real parts, from the door: it steers, and says why when it does not."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from mx_lab.processes import Process, wait_until

DOOR = str(pathlib.Path(sys.executable).with_name("mx-lab"))
#: Three heartbeats of five seconds: the shortest run that still shows everything.
SHORT = ["--heartbeat", "5", "--scrape", "2", "--targets", "1200", "--duration", "16"]

pytestmark = pytest.mark.timeout(240)


def lab(report: pathlib.Path, *arguments: str) -> tuple[int, str, dict[str, Any]]:
    """Run the lab; its exit status, what it printed, its report."""
    command = [DOOR, "run", *SHORT, "--report", str(report), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    file = report / "report.json"
    return done.returncode, done.stdout + done.stderr, json.loads(file.read_text()) if file.exists() else {}


def children_of(marker: str) -> list[int]:
    """Processes whose command line or environment holds `marker`."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if marker.encode() in (entry / "environ").read_bytes() and (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
    return found


def test_a_load_from_counters_and_engines_steers_targets_away(tmp_path: pathlib.Path) -> None:
    status, printed, report = lab(tmp_path / "report")
    assert status == 0, printed
    assert "STEERED: load_aware sent" in printed
    shares = {result["policy"]: result["busy_share"] for result in report["policies"]}
    assert shares["load_aware"] <= 0.05
    assert 0.20 <= shares["random"] <= 0.30
    assert all(result["starts"] == 1200 for result in report["policies"])
    assert report["transfer_time_below_random"] > 0.3
    hops = {hop["station"]: hop for hop in report["hops"]}
    assert list(hops) == [
        "NIC counter",
        "NIC utilization",
        "source load",
        "Prometheus",
        "MX server",
        "selector",
    ]
    for station in ("NIC counter", "NIC utilization", "source load", "Prometheus"):
        assert hops[station]["value"] == pytest.approx(0.9, abs=0.1), station
    assert hops["NIC utilization"]["age"] < 2.5
    assert hops["Prometheus"]["age"] < 4
    assert report["evidence"]["load_supported"] == 1


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--without", "operator"], "no operator runs: nobody writes loads to the server"),
        (["--without", "exporter"], "no exporter runs: nobody measures"),
        (["--server-drops-load"], "0 of 8 listed rows carry a load"),
    ],
    ids=["without operator", "without exporter", "server drops the load"],
)
def test_without_a_part_it_fails_and_says_why(tmp_path: pathlib.Path, arguments: list[str], why: str) -> None:
    status, printed, report = lab(tmp_path / "report", "--duration", "10", *arguments)
    assert status == 1, printed
    assert "NOT STEERED" in printed
    assert why in printed
    assert report["verdict"]["steered"] is False
    shares = {result["policy"]: result["busy_share"] for result in report["policies"]}
    assert shares["load_aware"] == pytest.approx(shares["rendezvous_hash"], abs=1e-9)  # exactly the baseline


@pytest.fixture
def running(tmp_path: pathlib.Path) -> Iterator[tuple[Process, str]]:
    """A lab with all its parts up, and what its children's environments carry."""
    marker = f"MX_LAB_TEST={tmp_path}"
    with Process(
        "mx-lab", [DOOR, "run", *SHORT], tmp_path / "log", env=os.environ | {"MX_LAB_TEST": str(tmp_path)}
    ) as process:
        process.wait_ready(lambda: "with a listed load" in process.output and len(children_of(marker)) >= 8, 60)
        yield process, marker


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_stops_everything_and_says_so(running: tuple[Process, str], number: signal.Signals) -> None:
    process, marker = running
    os.kill(process.pid, number)
    assert process.wait(20) == 130
    assert "interrupted; everything is stopped" in process.output
    assert children_of(marker) == []


def test_killed_it_leaves_no_process_behind(running: tuple[Process, str]) -> None:
    process, marker = running
    os.kill(process.pid, signal.SIGKILL)
    wait_until(lambda: not children_of(marker), 5, "the end of the lab's children")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--sources", "0"], "argument --sources: '0' is not a whole number from 1 to 100000"),
        (["--heartbeat", "soon"], "argument --heartbeat: 'soon' is not a number of seconds from 1 to 3600"),
        (["--without", "server"], "argument --without: invalid choice: 'server'"),
        (["--busy-nic", "8"], "mx-lab: 8 + 1 busy of 8 sources: at least one must be idle"),
        (["--report", "/proc/nowhere"], "mx-lab: --report /proc/nowhere: "),
    ],
)
def test_a_wrong_command_line_gets_one_clear_line_and_status_2(arguments: list[str], said: str) -> None:
    done = subprocess.run([DOOR, "run", *arguments], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 2
    assert said in done.stderr.splitlines()[-1]
