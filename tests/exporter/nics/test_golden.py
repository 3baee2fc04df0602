"""Cases from users' reports, each on a tree of its own, with the whole page as it must be.

The pages are in tests/exporter/golden; the numbers that matter are said here too.
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable

import pytest

from tests.exporter.looking import Looking, values
from tests.exporter.trees import Node, nodes

_GOLDEN = pathlib.Path(__file__).parent.parent / "golden"


def same(name: str, page: str) -> None:
    """The page is the golden one, to the letter. MX_WRITE_GOLDEN=1 writes it anew, to be read before it is kept."""
    file = _GOLDEN / f"{name}.txt"
    if os.environ.get("MX_WRITE_GOLDEN"):
        file.write_text(page)
    assert page == file.read_text()


def utilization(page: str, device: str, port: int = 1) -> dict[str, float]:
    """Direction -> utilization of one port."""
    found = values(page, "hw_network_bandwidth_utilization")
    ours = {labels: value for labels, value in found.items() if f'hw_id="{device}/{port}"' in labels}
    return {labels.split('direction="')[1].split('"')[0]: value for labels, value in ours.items()}


def test_words_are_four_octets_whatever_the_width(tmp_path: pathlib.Path) -> None:
    """node_exporter#573: a quarter of the real rate. 62.5e9 words in 10 s on 400 Gb/s are 25 GB/s, half."""
    node = nodes.eight_rails(tmp_path)
    looking = Looking(node)
    looking.tick()
    for _ in range(10):
        node.add("mlx5_0", "counters/port_xmit_data", 6_250_000_000)
        looking.tick()
    page = looking.page()
    assert utilization(page, "mlx5_0") == {"transmit": 0.5, "receive": 0.0}
    assert (
        values(page, "hw_network_io_bytes_total")[
            'device="mlx5_0",hw_id="mlx5_0/1",network_io_direction="transmit",port="1"'
        ]
        == 250e9
    )
    same("eight_rails", page)


def test_a_port_that_counts_nothing_silences_only_itself(tmp_path: pathlib.Path) -> None:
    """node_exporter#966 and #3265: `N/A (no PMA)` on one, EINVAL in an unneeded file of another."""
    node = nodes.no_pma(tmp_path)
    looking = Looking(node)
    looking.tick()
    node.add("hfi1_0", "counters/port_rcv_data", 312_500_000)
    node.add("mlx5_0", "counters/port_xmit_data", 1_250_000_000)
    node.add("mlx5_1", "counters/port_xmit_data", 2_500_000_000)
    looking.tick()
    page = looking.page()
    assert utilization(page, "hfi1_0") == {"transmit": 0.0, "receive": 0.1}
    assert utilization(page, "mlx5_0") == {"transmit": 0.1, "receive": 0.0}
    assert utilization(page, "mlx5_1") == {"transmit": 0.2, "receive": 0.0}
    assert utilization(page, "i40iw0") == {}
    same("no_pma", page)


def test_a_missing_folder_silences_only_its_port(tmp_path: pathlib.Path) -> None:
    """node_exporter#2846: a driver without `counters`; here its octets are found elsewhere."""
    node = nodes.irdma(tmp_path)
    node.function(nodes.rail(1))
    node.device("mlx5_0", nodes.rail(1))
    node.port("mlx5_0", counters=nodes.words())
    looking = Looking(node)
    looking.tick()
    node.add("ibp152s0f0", "hw_counters/ip4OutOctets", 1_000_000_000)
    node.add("ibp152s0f0", "hw_counters/ip6OutOctets", 250_000_000)
    node.add("mlx5_0", "counters/port_xmit_data", 1_250_000_000)
    looking.tick()
    page = looking.page()
    assert utilization(page, "ibp152s0f0") == {"transmit": 0.1, "receive": 0.0}
    assert utilization(page, "mlx5_0") == {"transmit": 0.1, "receive": 0.0}
    same("irdma", page)


@pytest.mark.parametrize("rate", ["0 GB/sec", "", "\0EINVAL"])
def test_an_empty_cage_is_down_and_divides_nothing(tmp_path: pathlib.Path, rate: str) -> None:
    """procfs#361, rdma-core#239."""
    node = Node(tmp_path)
    node.function(nodes.rail(0))
    node.device("mlx5_0", nodes.rail(0))
    node.port("mlx5_0", rate=rate, state="1: DOWN", counters=nodes.words())
    looking = Looking(node)
    looking.tick()
    looking.tick()
    page = looking.page()
    assert utilization(page, "mlx5_0") == {}
    assert list(values(page, "hw_network_up").values()) == [0.0]
    same("down", page)


def test_the_rate_of_a_port_that_was_down_is_read_again(tmp_path: pathlib.Path) -> None:
    """A placeholder rate must not stay the denominator: down at `10 Gb/sec`, later 5 GB/s of 400 Gb/s are 0.1."""
    node = Node(tmp_path)
    node.function(nodes.rail(0))
    node.device("mlx5_0", nodes.rail(0))
    node.port("mlx5_0", rate="10 Gb/sec (4X SDR)", state="1: DOWN", counters=nodes.words())
    looking = Looking(node)
    looking.tick()
    node.file("mlx5_0", "state").write_text("4: ACTIVE\n")
    node.file("mlx5_0", "rate").write_text("400 Gb/sec (4X NDR)\n")
    looking.tick()
    for _ in range(3):
        node.add("mlx5_0", "counters/port_xmit_data", 1_250_000_000)
        looking.tick()
    page = looking.page()
    assert utilization(page, "mlx5_0") == {"transmit": 0.1, "receive": 0.0}
    same("placeholder", page)


@pytest.mark.parametrize("rate", ["40 Gb/sec (4X QDR)", "10 Gb/sec (4X SDR)", "10 Gb/sec (4X)"])
@pytest.mark.parametrize("speed", [None, "-1", "\0EINVAL"])
def test_what_a_driver_presets_is_no_rate_where_the_interface_says_none(
    tmp_path: pathlib.Path, rate: str, speed: str | None
) -> None:
    """A 400 Gb/s port that its driver presets as 40 would read 0.5 with 5 % of its traffic."""
    node = Node(tmp_path)
    node.function(nodes.rail(0))
    if speed is not None:
        node.netdev("eth0", nodes.rail(0), speed)
    node.device("mlx5_0", nodes.rail(0))
    node.port("mlx5_0", rate=rate, layer="Ethernet", counters=nodes.words())
    looking = Looking(node)
    looking.tick()
    node.add("mlx5_0", "counters/port_xmit_data", 2_500_000_000 // 4)
    looking.tick()
    page = looking.page()
    assert utilization(page, "mlx5_0") == {}
    assert values(page, "hw_network_bandwidth_limit_bytes_per_second") == {}
    assert set(values(page, "mx_exporter_port_unknown").values()) == {1.0}
    assert 'reason="rate_placeholder"' in page


def test_the_speed_of_a_bond_is_that_of_all_its_ports_already(tmp_path: pathlib.Path) -> None:
    """Two ports of 40 Gb/s Ethernet, whose rate looks like a preset one, are 80 Gb/s and not twice as much."""
    node = nodes.bond(tmp_path)
    node.write("class/infiniband/mlx5_bond_1/ports/1/rate", "40 Gb/sec (4X QDR)")
    node.write("class/infiniband/mlx5_bond_1/ports/1/gid_attrs/ndevs/0", "bond0")
    node.write("class/net/bond0/speed", "80000")
    looking = Looking(node)
    looking.tick()
    assert list(values(looking.page(), "hw_network_bandwidth_limit_bytes_per_second").values()) == [10e9]


def test_a_device_whose_ports_cannot_be_listed_is_no_absent_one(tmp_path: pathlib.Path) -> None:
    node = Node(tmp_path)
    for i in range(2):
        node.function(nodes.rail(i))
        node.device(f"mlx5_{i}", nodes.rail(i))
    node.port("mlx5_0", rate="400 Gb/sec (4X NDR)", counters=nodes.words())
    looking = Looking(node)
    hint = looking.tick().nics.hint
    looking.tick()
    assert hint == f"{tmp_path}/sys/class/infiniband/mlx5_1/ports: no port can be listed there"
    assert 'mx_exporter_port_errors_total{device="mlx5_1",port="",reason="no_ports"} 2.0' in looking.page()
    node.port("mlx5_1", rate="400 Gb/sec (4X NDR)", counters=nodes.words())
    assert looking.tick().nics.hint is None
    looking.tick()
    assert utilization(looking.page(), "mlx5_1") == {"transmit": 0.0, "receive": 0.0}
    assert "no_ports" not in looking.page()


def test_a_bond_carries_what_all_its_ports_do(tmp_path: pathlib.Path) -> None:
    """DeepEP#671: `rate` says 200 Gb/s, two ports carry 46.6 GB/s: 0.932 of 50 GB/s, not 1.86."""
    node = nodes.bond(tmp_path)
    looking = Looking(node)
    looking.tick()
    node.add("mlx5_bond_1", "counters/port_xmit_data", 46_600_000_000 // 4)
    looking.tick()
    page = looking.page()
    assert utilization(page, "mlx5_bond_1") == {"transmit": 0.932, "receive": 0.0}
    assert list(values(page, "hw_network_bandwidth_limit_bytes_per_second").values()) == [50e9]
    same("bond", page)


@pytest.mark.parametrize(("make", "device"), [(nodes.efa, "rdmap16s27"), (nodes.bnxt, "bnxt_re0")])
def test_counters_in_octets_are_not_multiplied(
    tmp_path: pathlib.Path, make: Callable[[pathlib.Path], Node], device: str
) -> None:
    """procfs#675, node_exporter#3670: 12.5e9 octets in a second on 400 Gb/s are 0.25."""
    node = make(tmp_path)
    looking = Looking(node)
    looking.tick()
    node.add(device, "hw_counters/tx_bytes", 12_500_000_000)
    looking.tick()
    page = looking.page()
    assert utilization(page, device) == {"transmit": 0.25, "receive": 0.0}
    same(make.__name__, page)


def test_a_pods_own_view_is_unknown_not_idle(tmp_path: pathlib.Path) -> None:
    """soperator#403, Moneo#19: rate and state are there, no counters are, in another network namespace."""
    node = nodes.vf_pod(tmp_path)
    looking = Looking(node)
    looking.tick()
    looking.tick()
    page = looking.page()
    assert utilization(page, "mlx5_3") == {}
    assert [labels.split('reason="')[1] for labels in values(page, "mx_exporter_port_unknown")] == [
        'no_counters_netns"',
        'no_counters_netns"',
    ]
    same("vf_pod", page)


def test_a_reset_is_never_a_zero(tmp_path: pathlib.Path) -> None:
    """A driver reload: 10^12 words, then 5*10^6. That window is unknown, counted, and the next starts from there."""
    node = nodes.vf_pod(tmp_path)
    for name in ("port_xmit_data", "port_rcv_data"):
        node.write(f"class/infiniband/mlx5_3/ports/1/counters/{name}", str(10**12))
    looking = Looking(node)
    for _ in range(4):
        looking.tick()
    for name in ("port_xmit_data", "port_rcv_data"):
        node.file("mlx5_3", f"counters/{name}").write_text("5000000\n")
    looking.tick()
    page = looking.page()
    assert utilization(page, "mlx5_3") == {}
    assert values(page, "mx_exporter_port_errors_total") == {'device="mlx5_3",port="1",reason="reset"': 1.0}
    same("reset", page)
    node.add("mlx5_3", "counters/port_xmit_data", 1_250_000_000)
    looking.tick()
    assert utilization(looking.page(), "mlx5_3") == {"transmit": 0.1, "receive": 0.0}


def test_a_node_without_rdma_says_so(tmp_path: pathlib.Path) -> None:
    """node_exporter#1511: no class folder is no error."""
    looking = Looking(nodes.nothing(tmp_path))
    looking.tick()
    page = looking.page()
    assert values(page, "mx_exporter_ports") == {"": 0.0}
    same("nothing", page)


def test_roce_speed_comes_from_the_interface_where_the_driver_presets_one(tmp_path: pathlib.Path) -> None:
    node = nodes.roce(tmp_path)
    looking = Looking(node)
    looking.tick()
    for device in ("rocep0s0", "rocep1s0"):
        node.add(device, "counters/port_xmit_data", 1_250_000_000)
    looking.tick()
    page = looking.page()
    assert utilization(page, "rocep0s0") == utilization(page, "rocep1s0") == {"transmit": 0.1, "receive": 0.0}
    same("roce", page)
