"""The fleet's layout."""

from __future__ import annotations

import pytest

from mx_lab.fleet import Busy, make_fleet


def test_every_source_has_an_address_and_a_nic_of_its_own() -> None:
    fleet = make_fleet(sources=8, nodes=4, busy_nic=1, busy_kv=1, network=20, seed=1)
    sources = list(fleet)
    assert len(sources) == len({source.ip for source in sources}) == len({source.worker_id for source in sources}) == 8
    assert len({(source.node, source.device) for source in sources}) == 8
    assert {source.ip.split(".")[1] for source in sources} == {"20"}
    assert sorted(node.ip for node in fleet.nodes) == ["127.20.1.1", "127.20.2.1", "127.20.3.1", "127.20.4.1"]


def test_the_busy_ones_are_as_many_as_asked_and_really_loaded() -> None:
    fleet = make_fleet(sources=8, nodes=2, busy_nic=2, busy_kv=1, network=20, seed=7)
    by_kind = {kind: [source for source in fleet if source.busy is kind] for kind in Busy}
    assert {kind: len(found) for kind, found in by_kind.items()} == {Busy.NO: 5, Busy.NIC: 2, Busy.KV: 1}
    assert all(source.serving_tx >= 0.9 for source in by_kind[Busy.NIC])
    assert all(source.kv >= 0.9 and source.serving_tx <= 0.1 for source in by_kind[Busy.KV])
    assert all(source.load <= 0.15 for source in by_kind[Busy.NO])
    assert fleet.busy_share == 3 / 8


def test_a_seed_gives_the_same_fleet_and_another_one_another() -> None:
    first = make_fleet(sources=8, nodes=4, busy_nic=1, busy_kv=1, network=20, seed=1)
    assert first == make_fleet(sources=8, nodes=4, busy_nic=1, busy_kv=1, network=20, seed=1)
    assert first != make_fleet(sources=8, nodes=4, busy_nic=1, busy_kv=1, network=20, seed=2)


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ({"sources": 2, "nodes": 4}, "2 sources on 4 nodes: give 1 to 200 nodes and 1 to 8 sources a node"),
        ({"sources": 40, "nodes": 4}, "40 sources on 4 nodes"),
        ({"busy_nic": 4, "busy_kv": 4}, "4 \\+ 4 busy of 8 sources: at least one must be idle"),
    ],
)
def test_numbers_that_make_no_fleet_are_refused(numbers: dict[str, int], said: str) -> None:
    asked = {"sources": 8, "nodes": 4, "busy_nic": 1, "busy_kv": 1, "network": 20, "seed": 1} | numbers
    with pytest.raises(ValueError, match=said):
        make_fleet(**asked)
