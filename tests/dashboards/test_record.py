"""What a recording is made from: a lab's kept folder, and timestamps that move without losing a sample."""

from __future__ import annotations

import pathlib
import subprocess
import sys

from tests.dashboards import openmetrics

DOOR = str(pathlib.Path(sys.executable).with_name("mx-lab"))


def test_the_lab_keeps_its_data_in_a_new_folder_only(tmp_path: pathlib.Path) -> None:
    (tmp_path / "old").touch()
    done = subprocess.run(
        [DOOR, "run", "--keep", str(tmp_path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert done.stderr.splitlines() == [f"mx-lab: --keep {tmp_path}: not empty: give a new folder"]


def test_a_recording_moves_in_time_with_the_moments_it_holds() -> None:
    text = openmetrics.text(
        [
            ("up", {"job": 'a "b" \\ c'}, [(0.0, "1"), (15.0, "NaN")]),
            ("mx_exporter_sample_timestamp_seconds", {}, [(1.5, "1.1")]),
        ]
    )
    assert openmetrics.moved(text, 1000).splitlines() == [
        r'up{job="a \"b\" \\ c"} 1 1000.000',
        r'up{job="a \"b\" \\ c"} NaN 1015.000',
        "mx_exporter_sample_timestamp_seconds{} 1001.100 1001.500",
        "# EOF",
    ]
