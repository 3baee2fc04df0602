"""The tables of `--once`: whatever pods and engines call themselves, a person reads it and no terminal obeys it."""

from __future__ import annotations

import dataclasses
import pathlib

import hypothesis
import pytest
from hypothesis import strategies as st

from mx_exporter.app import Exporter
from mx_exporter.cli import parser
from mx_exporter.config import settings
from mx_exporter.model import Usage
from mx_exporter.once import report
from mx_exporter.snapshot import Snapshot
from tests.exporter.test_exposition import POD, full


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    return full(tmp_path_factory.mktemp("node")).tick()


def shown(snapshot: Snapshot, *ranks: str) -> str:
    """The report of an engine that gives its ranks these names."""
    usages = {POD: tuple(Usage("vllm", rank, 0.5, None, 0.0) for rank in ranks)}
    return report(dataclasses.replace(snapshot, usages=usages))


def test_every_blank_has_its_reason(tmp_path: pathlib.Path) -> None:
    text = report(full(tmp_path).tick())
    for said in ("mlx5_0/1", "25.0%", "unknown: frozen", "unknown: no_pma", "kv: refused", "explicit"):
        assert said in text, said


def test_a_kubelet_that_cannot_be_asked_is_said(
    tmp_path: pathlib.Path,
) -> None:
    socket, sources = tmp_path / "nope.sock", tmp_path / "sources.yaml"
    sources.write_text("sources: []")
    arguments = ["--sysfs", str(tmp_path), "--pod-resources", str(socket), "--window", "0.1", "--interval", "0.1"]
    given = parser().parse_args([*arguments, "--discovery", "static", "--sources", str(sources)])
    text = report(Exporter(settings(given, {})).look())
    assert f"--pod-resources {socket} cannot be asked: No such file or directory" in text


def test_names_are_shown_as_they_are(snapshot: Snapshot) -> None:
    """What would be a colour, a face, or the end of a colour that never began."""
    names = ("[red]", "[/a]", ":boom:")
    assert [name for name in names if name not in shown(snapshot, *names)] == []


@hypothesis.given(rank=st.text(max_size=16))
def test_no_name_commands_the_terminal(snapshot: Snapshot, rank: str) -> None:
    text = shown(snapshot, rank)
    assert all(letter.isprintable() for letter in text.replace("\n", ""))
    text.encode()
