"""Which ports count for a source, in the order of trust."""

from __future__ import annotations

import pathlib

from hypothesis import given
from hypothesis import strategies as st

from mx_exporter.mapping.assignments import assign, compute_ports
from mx_exporter.mapping.places import places
from mx_exporter.model import Assignment, Device, Flow, Gpu, Mapping, Place, Pod, PortId, PortStatus, Source
from mx_exporter.nics.sysfs import Tree
from tests.exporter.looking import Looking
from tests.exporter.trees import Node, nodes

POD = Pod("ai", "vllm-0", "uid-0", "10.0.0.7")


def gpus(*numbers: int) -> tuple[Gpu, ...]:
    return tuple(Gpu(index, f"GPU-{n:08d}-0000-0000-0000-000000000000") for index, n in enumerate(numbers))


def assigned(node: Node, source: Source) -> list[tuple[str, str, str]]:
    """(gpu, mapping, ports) of a source on a node."""
    statuses = Looking(node).tick().nics.statuses
    found = assign(source, statuses, places(Tree(node.sysfs), Tree(node.procfs), source.gpus))
    return [(one.gpu, one.mapping.value, " ".join(port.hw_id for port in one.ports)) for one in found]


def test_what_a_source_names_goes_before_everything(tmp_path: pathlib.Path) -> None:
    node = nodes.eight_rails(tmp_path)
    source = Source(POD, nic_devices=("mlx5_3",), nic_addresses=("0000:12:00.0",), gpus=gpus(0))
    assert assigned(node, source) == [("", "explicit", "mlx5_3/1")]


def test_names_may_have_ports_and_patterns(tmp_path: pathlib.Path) -> None:
    node = nodes.eight_rails(tmp_path)
    assert assigned(node, Source(POD, nic_devices=("mlx5_0:1", "mlx5_1:2", "mlx5_[67]"))) == [
        ("", "explicit", "mlx5_0/1 mlx5_6/1 mlx5_7/1")
    ]


def test_names_that_are_not_here_say_nothing(tmp_path: pathlib.Path) -> None:
    node = nodes.eight_rails(tmp_path)
    assert assigned(node, Source(POD, nic_devices=("eth0",), gpus=gpus(2))) == [("", "affinity", "mlx5_2/1")]


def test_pins_are_by_gpu(tmp_path: pathlib.Path) -> None:
    node = nodes.eight_rails(tmp_path)
    source = Source(POD, nic_pins=("mlx5_4", "mlx5_5:1"), gpus=gpus(0, 1))
    assert assigned(node, source) == [("0", "explicit", "mlx5_4/1"), ("1", "explicit", "mlx5_5/1")]
    short = Source(POD, nic_pins=("mlx5_4",), gpus=gpus(0, 1))
    assert assigned(node, short) == [("0", "explicit", "mlx5_4/1"), ("1", "explicit", "")]


def test_an_address_means_its_device(tmp_path: pathlib.Path) -> None:
    node = nodes.virtual_functions(tmp_path)
    assert assigned(node, Source(POD, nic_addresses=("0000:12:00.3",))) == [("", "pci", "mlx5_2/1")]


def test_an_address_that_cannot_be_seen_is_no_reason_to_guess(tmp_path: pathlib.Path) -> None:
    node = nodes.eight_rails(tmp_path)
    statuses = Looking(node).tick().nics.statuses
    assert assign(Source(POD, nic_addresses=("0000:ff:00.1",)), statuses, {}) == (
        Assignment("", Mapping.PCI, (), "nic_not_visible"),
    )


def test_each_gpu_has_the_nic_on_its_own_switch(tmp_path: pathlib.Path) -> None:
    node = nodes.eight_rails(tmp_path)
    assert assigned(node, Source(POD, gpus=gpus(5))) == [("", "affinity", "mlx5_5/1")]
    assert assigned(node, Source(POD, gpus=gpus(0, 1, 6))) == [
        ("0", "affinity", "mlx5_0/1"),
        ("1", "affinity", "mlx5_1/1"),
        ("2", "affinity", "mlx5_6/1"),
    ]


def test_given_nics_are_shared_out_by_distance(tmp_path: pathlib.Path) -> None:
    node = nodes.eight_rails(tmp_path)
    source = Source(POD, nic_addresses=("0000:12:00.0", "0000:22:00.0"), gpus=gpus(0, 1))
    assert assigned(node, source) == [("0", "pci", "mlx5_0/1"), ("1", "pci", "mlx5_1/1")]


def test_a_rail_that_is_down_is_not_the_nearest(tmp_path: pathlib.Path) -> None:
    node = nodes.eight_rails(tmp_path)
    node.file("mlx5_2", "state").write_text("1: DOWN\n")
    assert assigned(node, Source(POD, gpus=gpus(2))) == [("", "affinity", "mlx5_0/1 mlx5_1/1 mlx5_3/1")]


def test_without_any_clue_all_compute_ports_are_looked_at(tmp_path: pathlib.Path) -> None:
    node = nodes.eight_rails(tmp_path)
    eight = " ".join(f"mlx5_{i}/1" for i in range(8))  # not the storage NIC
    assert assigned(node, Source(POD)) == [("", "busiest", eight)]
    assert assigned(node, Source(POD, gpus=(Gpu(0, "GPU-unheard-of"), Gpu(1)))) == [("", "busiest", eight)]


def test_no_nic_and_no_active_nic_are_told_apart(tmp_path: pathlib.Path) -> None:
    node = nodes.nothing(tmp_path / "a")
    assert assign(Source(POD), {}, {})[0].reason == "no_nic"
    node = nodes.vf_pod(tmp_path / "b")
    node.file("mlx5_3", "state").write_text("1: DOWN\n")
    assert assign(Source(POD), Looking(node).tick().nics.statuses, {})[0].reason == "no_active_port"


def status(name: str, path: tuple[str, ...], limit: float | None = 5e10, up: bool = True) -> PortStatus:
    device = Device(name, name, (1,), pci_address=path[-1] if path else None, pci_path=path)
    return PortStatus(PortId(name, 1), device, up, limit, Flow(), Flow())


@given(
    st.lists(st.lists(st.sampled_from("abcd"), max_size=4).map(tuple), min_size=1, max_size=6),
    st.lists(st.lists(st.sampled_from("abcd"), max_size=4).map(tuple), max_size=4),
    st.permutations(range(6)),
)
def test_an_assignment_never_depends_on_the_order_and_never_leaves_the_node(
    nics: list[tuple[str, ...]], where: list[tuple[str, ...]], order: list[int]
) -> None:
    statuses = {PortId(f"n{i}", 1): status(f"n{i}", path) for i, path in enumerate(nics)}
    shuffled = {port: statuses[port] for i in order if (port := PortId(f"n{i}", 1)) in statuses}
    source = Source(POD, gpus=tuple(Gpu(i) for i in range(len(where))))
    found = {i: Place(path) for i, path in enumerate(where)}
    ours, theirs = assign(source, statuses, found), assign(source, shuffled, found)
    assert [(one.gpu, one.mapping, set(one.ports)) for one in ours] == [
        (one.gpu, one.mapping, set(one.ports)) for one in theirs
    ]
    assert ours
    assert all(one.ports and set(one.ports) <= set(statuses) for one in ours)


def test_a_port_of_unknown_rate_is_not_left_out() -> None:
    statuses = {PortId(n, 1): status(n, (), limit) for n, limit in (("a", 5e10), ("b", 1e9), ("c", None))}
    assert [port.device for port in compute_ports(statuses)] == ["a", "c"]
