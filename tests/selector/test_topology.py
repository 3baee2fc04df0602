"""Tiers, what breaks ties inside them, and the environment that says where this node is."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest

from mx_selector import Target, rank, resolve, top
from mx_selector.policies import topology
from mx_selector.policies.topology import TopologyAware
from tests.selector.rows import TARGET, ids, row, targets

HERE = {"zone": "z1", "block": "b1", "rack": "r1"}


@pytest.mark.parametrize(
    ("theirs", "depth"),
    [
        ({}, -1),
        ({"zone": "z1"}, 0),
        ({"zone": "z1", "block": "b1"}, 1),
        (HERE, 2),
        ({"zone": "z2", "block": "b1", "rack": "r1"}, -1),  # names repeat in other zones
        ({"zone": "z1", "rack": "r1"}, 0),  # a level that one side lacks ends the prefix
        ({**HERE, "host": "h"}, 2),
    ],
)
def test_nearness_is_the_shared_prefix(theirs: dict[str, str], depth: int) -> None:
    assert topology.shared_depth(("zone", "block", "rack"), HERE, theirs) == depth


def test_a_level_that_neither_has_is_skipped() -> None:
    assert topology.shared_depth(("region", "zone", "rack"), {"zone": "z"}, {"zone": "z"}) == 1


def near_and_far() -> list[Any]:
    return [
        row("far-idle", 0.0, topology={"zone": "z2"}),
        row("near-busy", 0.95, topology=HERE),
        row("near-idle", 0.0, topology=HERE),
        row("zone-idle", 0.0, topology={"zone": "z1"}),
    ]


def test_tiers_come_before_load_and_the_tiebreak_orders_inside() -> None:
    for target in targets(50):
        here = Target(target.model_name, target.worker_id, 0, topology=HERE)
        ordered = ids(rank(near_and_far(), here, TopologyAware(resolve("load_aware"))))
        assert set(ordered[:2]) == {"near-busy", "near-idle"}
        assert ordered[2:] == ["zone-idle", "far-idle"]
        assert ids(top(near_and_far(), here, 3, TopologyAware(resolve("load_aware")))) == ordered[:3]


def first_inside(monkeypatch: pytest.MonkeyPatch, **environ: str) -> float:
    for name, value in {"MX_P2P_TOPOLOGY": json.dumps(HERE), **environ}.items():
        monkeypatch.setenv(name, value)
    firsts = [ids(rank(near_and_far(), t, "topology_aware"))[0] for t in targets(400)]
    assert set(firsts) <= {"near-busy", "near-idle"}
    return firsts.count("near-busy") / len(firsts)


def test_the_tiebreak_is_rendezvous_unless_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert first_inside(monkeypatch) == pytest.approx(0.5, abs=0.08)


@pytest.mark.parametrize(
    "environ",
    [
        {"MX_P2P_TOPOLOGY_TIEBREAK": "headroom"},
        {"MX_P2P_TOPOLOGY_TIEBREAK": "load_aware"},
        {"MX_P2P_TOPOLOGY_LOAD_WEIGHT": "1"},
        {"MX_P2P_LOAD_WEIGHT": "1"},
    ],
)
def test_load_counts_inside_a_tier_where_told(environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert first_inside(monkeypatch, **environ) < 0.03


@pytest.mark.parametrize("tiebreak", ["topology_aware", "nonsense"])
def test_a_tiebreak_that_makes_no_sense_is_replaced_and_said(
    tiebreak: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("mx_selector.settings._said", set())
    assert first_inside(monkeypatch, MX_P2P_TOPOLOGY_TIEBREAK=tiebreak) > 0.4
    assert len(caplog.records) == 1


@pytest.mark.parametrize("bad", ["[]", "{", "nothing", "3"])
def test_an_unusable_topology_is_none_and_said_once(
    bad: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mx_selector.settings._said", set())
    for _ in range(2):
        assert topology.local_domains({"MX_P2P_TOPOLOGY": bad}) == {}
    assert len(caplog.records) == 1


def test_domains_come_from_the_mounted_folder(tmp_path: pathlib.Path) -> None:
    (tmp_path / "zone").write_text("z1\n")
    (tmp_path / "empty").write_text("")
    (tmp_path / "..data").mkdir()
    (tmp_path / "folder").mkdir()
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    assert topology.local_domains({"DYN_TOPOLOGY_MOUNT_PATH": str(tmp_path)}) == {"zone": "z1"}
    assert topology.local_domains({"DYN_TOPOLOGY_MOUNT_PATH": str(tmp_path / "none")}) == {}
    explicit = {"DYN_TOPOLOGY_MOUNT_PATH": str(tmp_path), "MX_P2P_TOPOLOGY": '{"rack": 7, "host": null}'}
    assert topology.local_domains(explicit) == {"rack": "7"}


def test_levels_are_groves_unless_named() -> None:
    assert topology.levels({}) == topology.LEVELS
    assert topology.levels({"MX_P2P_TOPOLOGY_LEVELS": " block, rack ,"}) == ("block", "rack")


def test_rows_without_a_topology_share_nothing() -> None:
    policy = TopologyAware(local=HERE)
    odd: list[Any] = [object(), type("T", (), {"topology": None})(), type("T", (), {"topology": 5})()]
    assert policy.depths(odd, TARGET) == [-1, -1, -1]
