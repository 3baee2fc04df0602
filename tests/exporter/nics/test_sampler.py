"""What happens to devices while we look: they vanish, come back, hang, and never take others with them."""

from __future__ import annotations

import pathlib
import shutil
import threading

import pytest

from mx_exporter.nics.sampler import NicSampler
from mx_exporter.nics.sysfs import Tree, UnreadableError
from mx_exporter.nics.tracks import Timing
from mx_exporter.nics.walk import Walk
from tests.exporter.looking import Clock, Looking
from tests.exporter.trees import Node, nodes


class Troubled(Tree):
    """A tree where chosen files misbehave: they raise a reason, or hang until they are let go."""

    def __init__(self, node: Node) -> None:
        super().__init__(node.sysfs)
        self.reasons: dict[str, str] = {}
        self.hanging: dict[str, threading.Event] = {}

    def read(self, path: str) -> str:
        for part, event in list(self.hanging.items()):
            if part in path:
                event.wait(10)
        for part, reason in self.reasons.items():
            if part in path:
                raise UnreadableError(reason)
        return super().read(path)


def known(looking: Looking) -> dict[str, float | None]:
    """Device -> transmit utilization at the present."""
    snapshot = looking.present.get()
    assert snapshot is not None
    return {port.device: status.transmit.utilization for port, status in snapshot.nics.statuses.items()}


def reasons(looking: Looking) -> dict[str, str | None]:
    snapshot = looking.present.get()
    assert snapshot is not None
    return {port.device: status.transmit.reason for port, status in snapshot.nics.statuses.items()}


@pytest.mark.parametrize("reason", ["invalid_argument", "denied", "gone", "io_error", "timeout"])
@pytest.mark.parametrize("file", ["counters/port_xmit_data", "rate", "state", "node_guid"])
def test_no_file_harms_another_device(tmp_path: pathlib.Path, file: str, reason: str) -> None:
    tree = Troubled(node := nodes.eight_rails(tmp_path))
    tree.reasons[f"mlx5_3/ports/1/{file}" if file != "node_guid" else "mlx5_3/node_guid"] = reason
    looking = Looking(node, tree=tree)
    looking.tick()
    looking.tick()
    seen = known(looking)
    assert all(value == 0.0 for device, value in seen.items() if device != "mlx5_3")
    if file != "node_guid":
        assert seen["mlx5_3"] is None


def test_one_direction_that_cannot_be_read_leaves_the_other(tmp_path: pathlib.Path) -> None:
    tree = Troubled(node := nodes.vf_pod(tmp_path))
    for name, text in nodes.words().items():
        node.write(f"class/infiniband/mlx5_3/ports/1/counters/{name}", text)
    tree.reasons["/counters/port_rcv_data"] = "io_error"
    looking = Looking(node, tree=tree)
    looking.tick()
    looking.tick()
    snapshot = looking.present.get()
    assert snapshot is not None
    (status,) = snapshot.nics.statuses.values()
    assert (status.transmit.utilization, status.receive.reason) == (0.0, "io_error")


def test_a_device_that_vanishes_takes_its_series_along_and_comes_back_new(tmp_path: pathlib.Path) -> None:
    node = nodes.eight_rails(tmp_path)
    looking = Looking(node)
    for _ in range(3):
        looking.tick()
    entry = node.sysfs / "class/infiniband/mlx5_3"
    folder = entry.resolve()
    shutil.move(folder, tmp_path / "away")
    entry.unlink()
    looking.tick()
    assert "mlx5_3" not in looking.page()
    node.device("mlx5_3", nodes.rail(3), guid="another")
    node.port("mlx5_3", counters=nodes.words(10**12))
    looking.tick()
    assert reasons(looking)["mlx5_3"] == "baseline"
    looking.tick()
    assert known(looking)["mlx5_3"] == 0.0


def test_a_reset_seen_in_one_direction_is_one_of_both(tmp_path: pathlib.Path) -> None:
    """The other counter began anew as well, even if it is above its old value by now."""
    node = nodes.vf_pod(tmp_path)
    for name, text in nodes.words(10**12, 0).items():
        node.write(f"class/infiniband/mlx5_3/ports/1/counters/{name}", text)
    looking = Looking(node)
    for _ in range(3):
        looking.tick()
    node.file("mlx5_3", "counters/port_xmit_data").write_text("5\n")
    node.file("mlx5_3", "counters/port_rcv_data").write_text("1250000000\n")
    snapshot = looking.tick()
    (status,) = snapshot.nics.statuses.values()
    assert (status.transmit.reason, status.receive.reason) == ("reset", "reset")
    assert (status.transmit.peak, status.receive.peak) == (0.0, 0.0)
    (status,) = looking.tick().nics.statuses.values()
    assert (status.transmit.utilization, status.receive.utilization) == (0.0, 0.0)


def test_a_device_that_was_replaced_between_two_ticks_starts_anew(tmp_path: pathlib.Path) -> None:
    """Even if its counters are higher than the old ones were: that difference was never carried."""
    node = nodes.eight_rails(tmp_path)
    looking = Looking(node)
    for _ in range(3):
        looking.tick()
    node.write("class/infiniband/mlx5_3/node_guid", "another")
    node.add("mlx5_3", "counters/port_xmit_data", 10**9)
    looking.tick()
    assert (known(looking)["mlx5_3"], reasons(looking)["mlx5_3"]) == (None, "reset")


def test_a_device_that_hangs_is_passed_over_and_let_back_in(tmp_path: pathlib.Path) -> None:
    tree = Troubled(nodes.eight_rails(tmp_path))
    clock, before = Clock(), threading.active_count()
    sampler = NicSampler(tree, Timing(), clock, patience=0.2)

    def tick() -> dict[str, str | None]:
        clock.now += 1
        return {port.device: status.transmit.reason for port, status in sampler.tick().statuses.items()}

    tick()
    assert set(tick().values()) == {None}
    tree.hanging["mlx5_3/ports"] = threading.Event()
    for _ in range(3):
        assert {device: reason for device, reason in tick().items() if reason} == {"mlx5_3": "timeout"}
    assert threading.active_count() == before + 2  # one thread is left behind, not one a tick
    tree.hanging.pop("mlx5_3/ports").set()
    for thread in threading.enumerate():
        if thread.name == "mx-walk" and thread is not sampler._walk._worker.thread:  # type: ignore[union-attr]
            thread.join(5)
    assert tick()["mlx5_3"] == "baseline"
    assert tick()["mlx5_3"] is None
    sampler.stop()


def test_a_walk_survives_a_look_that_raises(caplog: pytest.LogCaptureFixture) -> None:
    def look(name: str) -> str:
        if name == "b":
            raise RuntimeError("a defect")
        return name.upper()

    walk = Walk(look, patience=5.0)
    assert walk.over(["a", "b", "c"]) == {"a": "A", "b": None, "c": "C"}
    assert "a defect" in caplog.text
    walk.stop()


def test_saturated_counters_are_unknown_not_idle(tmp_path: pathlib.Path) -> None:
    """A 32-bit counter that reached its end stays there: that is not a link at rest."""
    node = nodes.vf_pod(tmp_path)
    for name in ("port_xmit_data", "port_rcv_data"):
        node.write(f"class/infiniband/mlx5_3/ports/1/counters/{name}", str(2**32 - 1))
    looking = Looking(node)
    for _ in range(3):
        looking.tick()
    assert reasons(looking) == {"mlx5_3": "saturated"}


def test_old_kernels_64_bit_counters_go_first(tmp_path: pathlib.Path) -> None:
    node = nodes.mlx4(tmp_path)
    looking = Looking(node)
    looking.tick()
    node.add("mlx4_0", "counters_ext/port_xmit_data_64", 125_000_000, port=2)
    looking.tick()
    snapshot = looking.present.get()
    assert snapshot is not None
    found = {port.port: status.transmit.utilization for port, status in snapshot.nics.statuses.items()}
    assert found == {1: 0.0, 2: 0.5 / 7}


def test_erdma_counts_under_its_own_names(tmp_path: pathlib.Path) -> None:
    node = nodes.erdma(tmp_path)
    looking = Looking(node)
    looking.tick()
    node.add("erdma_0", "hw_counters/hw_tx_bytes_cnt", 1_250_000_000)
    looking.tick()
    assert known(looking) == {"erdma_0": 0.1}


def test_a_wrong_denominator_is_flagged_not_clamped(tmp_path: pathlib.Path) -> None:
    node = nodes.vf_pod(tmp_path)
    for name, text in nodes.words().items():
        node.write(f"class/infiniband/mlx5_3/ports/1/counters/{name}", text)
    looking = Looking(node)
    looking.tick()
    node.add("mlx5_3", "counters/port_xmit_data", 12_500_000_000 * 104 // 100)
    looking.tick()
    assert known(looking) == {"mlx5_3": 1.0}  # within what clocks may be wrong
    node.add("mlx5_3", "counters/port_xmit_data", 12_500_000_000 * 125 // 100)
    looking.tick()
    assert (known(looking), reasons(looking)) == ({"mlx5_3": None}, {"mlx5_3": "over_limit"})
    assert 'mx_exporter_port_errors_total{device="mlx5_3",port="1",reason="over_limit"} 1.0' in looking.page()


def test_the_peak_outlives_the_window(tmp_path: pathlib.Path) -> None:
    node = nodes.vf_pod(tmp_path)
    for name, text in nodes.words().items():
        node.write(f"class/infiniband/mlx5_3/ports/1/counters/{name}", text)
    looking = Looking(node)
    looking.tick()
    node.add("mlx5_3", "counters/port_xmit_data", 10_000_000_000)

    def peak() -> float | None:
        snapshot = looking.present.get()
        assert snapshot is not None
        (status,) = snapshot.nics.statuses.values()
        return status.transmit.peak

    for _ in range(30):
        looking.tick()
        assert peak() == 0.8
    assert known(looking) == {"mlx5_3": 0.0}
    looking.tick()
    assert peak() == 0.0


def test_physical_functions_carry_what_their_virtual_ones_do(tmp_path: pathlib.Path) -> None:
    node = nodes.virtual_functions(tmp_path)
    looking = Looking(node)
    looking.tick()
    node.add("mlx5_0", "counters/port_xmit_data", 1_250_000_000)
    node.add("mlx5_1", "counters/port_xmit_data", 2_500_000_000)
    node.add("mlx5_2", "counters/port_xmit_data", 5_000_000_000)
    looking.tick()
    assert known(looking) == {"mlx5_0": 0.7, "mlx5_1": 0.2, "mlx5_2": 0.4}


def test_a_wire_with_a_part_that_is_not_known_is_not_known(tmp_path: pathlib.Path) -> None:
    tree = Troubled(node := nodes.virtual_functions(tmp_path))
    tree.reasons["mlx5_2/ports/1/counters"] = "io_error"
    looking = Looking(node, tree=tree)
    looking.tick()
    looking.tick()
    assert reasons(looking) == {"mlx5_0": "function_unknown", "mlx5_1": None, "mlx5_2": "io_error"}


@pytest.mark.parametrize(("driver", "folder", "reason"), [
    ("mlx5_core", True, "hidden_functions"),  # its counters are in a pod's network namespace
    ("vfio-pci", False, "hidden_functions"),  # it is a guest's
    ("mlx5_core", False, None),  # it carries no RDMA
    ("", False, None),  # nobody drives it
])  # fmt: skip
def test_virtual_functions_that_cannot_be_seen_make_the_wire_unknown(
    tmp_path: pathlib.Path, driver: str, folder: bool, reason: str | None
) -> None:
    node = nodes.virtual_functions(tmp_path, count=1)
    chain = nodes.rail(0).rsplit("/", 1)[0] + "/0000:12:01.0"
    node.function(chain, driver=driver, of=nodes.rail(0))
    if folder:
        (node.sysfs / f"devices/{chain}/infiniband").mkdir()
    looking = Looking(node)
    looking.tick()
    looking.tick()
    assert reasons(looking)["mlx5_0"] == reason


def test_a_bond_carries_what_the_virtual_functions_of_both_its_ports_do(tmp_path: pathlib.Path) -> None:
    node = nodes.bond(tmp_path)
    first, second = nodes.rail(0), nodes.rail(0)[:-1] + "1"
    for number, physical in ((2, first), (3, second)):
        chain = physical.rsplit("/", 1)[0] + f"/0000:12:0{number}.0"
        node.function(chain, of=physical)
        node.device(f"mlx5_{number}", chain)
        node.port(f"mlx5_{number}", rate="200 Gb/sec (4X HDR)", layer="Ethernet", counters=nodes.words())
    looking = Looking(node)
    looking.tick()
    node.add("mlx5_2", "counters/port_xmit_data", 1_250_000_000)
    node.add("mlx5_3", "counters/port_xmit_data", 2_500_000_000)
    looking.tick()
    assert known(looking) == {"mlx5_2": 0.2, "mlx5_3": 0.4, "mlx5_bond_1": 0.3}


@pytest.mark.parametrize("port", ["0", "1"])
def test_a_hidden_function_of_either_port_makes_a_bond_unknown(tmp_path: pathlib.Path, port: str) -> None:
    node = nodes.bond(tmp_path)
    physical = nodes.rail(0)[:-1] + port
    chain = physical.rsplit("/", 1)[0] + "/0000:12:02.0"
    node.function(chain, driver="vfio-pci", of=physical)
    looking = Looking(node)
    looking.tick()
    looking.tick()
    assert reasons(looking) == {"mlx5_bond_1": "hidden_functions"}


def test_a_bond_in_active_backup_carries_one_port(tmp_path: pathlib.Path) -> None:
    node = nodes.bond(tmp_path)
    node.write("class/net/eth1/bonding_slave/state", "backup")
    looking = Looking(node)
    looking.tick()
    node.add("mlx5_bond_1", "counters/port_xmit_data", 3_125_000_000)
    looking.tick()
    assert known(looking) == {"mlx5_bond_1": 0.5}


def test_a_bond_that_loses_a_port_loses_its_limit_at_once(tmp_path: pathlib.Path) -> None:
    node = nodes.bond(tmp_path)
    looking = Looking(node)
    for _ in range(3):
        node.add("mlx5_bond_1", "counters/port_xmit_data", 3_125_000_000)
        looking.tick()
    assert known(looking) == {"mlx5_bond_1": 0.25}
    node.write("class/net/eth1/bonding_slave/mii_status", "down")
    for expected in (None, 0.5):
        node.add("mlx5_bond_1", "counters/port_xmit_data", 3_125_000_000)
        looking.tick()
        assert known(looking) == {"mlx5_bond_1": expected}


def test_a_bond_of_unknown_width_needs_a_stated_limit(tmp_path: pathlib.Path) -> None:
    from mx_exporter.nics.readings import Limits

    node = nodes.bond(tmp_path)
    shutil.rmtree(node.sysfs / "devices/virtual/net/bond0")
    looking = Looking(node)
    looking.tick()
    looking.tick()
    assert reasons(looking) == {"mlx5_bond_1": "rate_rails_unknown"}
    looking = Looking(node, limits=Limits((("mlx5_bond_*", 50e9),)))
    looking.tick()
    looking.tick()
    assert known(looking) == {"mlx5_bond_1": 0.0}


def test_two_bonded_interfaces_with_rdma_devices_of_their_own_are_no_bond(tmp_path: pathlib.Path) -> None:
    node = nodes.bond(tmp_path)
    other = nodes.rail(0)[:-1] + "1"
    node.device("mlx5_2", other)
    node.port("mlx5_2", rate="200 Gb/sec (4X HDR)", layer="Ethernet", counters=nodes.words())
    looking = Looking(node)
    looking.tick()
    snapshot = looking.tick()
    assert {port.device: status.limit for port, status in snapshot.nics.statuses.items()} == {
        "mlx5_bond_1": 25e9,
        "mlx5_2": 25e9,
    }
