"""Whole nodes as users have them: one function each, which writes the tree and returns it."""

from __future__ import annotations

import pathlib

from tests.exporter.trees import EINVAL, NO_PMA, Node


def words(transmit: int = 0, receive: int = 0) -> dict[str, str]:
    """The counters of a port that counts words of four octets."""
    return {
        "port_xmit_data": str(transmit),
        "port_rcv_data": str(receive),
        "port_xmit_wait": "17",
        "symbol_error": "0",
        "link_downed": "0",
    }


def rail(number: int) -> str:
    """The chain of the NIC on PCI switch `number` of an eight-rail node."""
    domain = f"0000:{0x10 + 0x10 * number:02x}"
    return f"pci{domain}/{domain}:01.0/{domain[:5]}{0x11 + 0x10 * number:02x}:00.0/{_nic(number)}"


def _nic(number: int) -> str:
    return f"0000:{0x12 + 0x10 * number:02x}:00.0"


def gpu_beside(number: int) -> str:
    """The chain of the GPU on the same PCI switch."""
    return rail(number).rsplit("/", 1)[0] + f"/0000:{0x14 + 0x10 * number:02x}:00.0"


def eight_rails(root: pathlib.Path) -> Node:
    """Eight GPUs, each beside its own 400 Gb/s InfiniBand NIC, and a slower NIC for storage."""
    node = Node(root)
    for i in range(8):
        node.function(rail(i), numa=i // 4)
        node.device(f"mlx5_{i}", rail(i))
        node.port(f"mlx5_{i}", counters=words())
        node.gpu(gpu_beside(i), f"GPU-{i:08d}-0000-0000-0000-000000000000", i, numa=i // 4)
    storage = "pci0000:c0/0000:c0:01.0/0000:c1:00.0"
    node.function(storage, numa=1)
    node.device("mlx5_8", storage)
    node.port("mlx5_8", rate="100 Gb/sec (4X EDR)", counters=words())
    return node


def roce(root: pathlib.Path) -> Node:
    """Two RoCE ports: one that knows its speed, one whose driver presets QDR while the interface knows better."""
    node = Node(root)
    for i, rate in enumerate(("400 Gb/sec (4X NDR)", "40 Gb/sec (4X QDR)")):
        node.function(rail(i))
        node.netdev(f"eth{i}", rail(i), "400000")
        node.device(f"rocep{i}s0", rail(i))
        node.port(f"rocep{i}s0", rate=rate, layer="Ethernet", counters=words())
    return node


def bond(root: pathlib.Path) -> Node:
    """Two 200 Gb/s ports of one NIC joined to one RDMA device, whose `rate` says the rate of one."""
    node = Node(root)
    chain = rail(0)
    other = chain[:-1] + "1"
    for i, function in enumerate((chain, other)):
        node.function(function)
        node.netdev(f"eth{i}", function, "200000")
    node.bond("bond0", {"eth0": "active", "eth1": "active"})
    node.device("mlx5_bond_1", chain)
    node.port("mlx5_bond_1", rate="200 Gb/sec (4X HDR)", layer="Ethernet", counters=words())
    return node


def efa(root: pathlib.Path) -> Node:
    """EFA: byte counters under hw_counters, no `counters` folder, an unspecified link layer."""
    node = Node(root)
    node.function(rail(0), driver="efa")
    node.device("rdmap16s27", rail(0))
    node.port(
        "rdmap16s27",
        rate="400 Gb/sec (8X HDR)",
        layer="Unspecified",
        hw_counters={
            "tx_bytes": "0",
            "rx_bytes": "0",
            "rdma_read_bytes": "0",
            "rdma_write_bytes": "0",
            "lifespan": "12",
        },
    )
    return node


def bnxt(root: pathlib.Path) -> Node:
    """bnxt_re: byte counters under hw_counters, and a `counters` folder that answers EINVAL."""
    node = Node(root)
    node.function(rail(0), driver="bnxt_en")
    node.device("bnxt_re0", rail(0))
    node.port(
        "bnxt_re0",
        layer="Ethernet",
        counters={"port_xmit_data": EINVAL, "port_rcv_data": EINVAL},
        hw_counters={"tx_bytes": "0", "rx_bytes": "0"},
    )
    return node


def no_pma(root: pathlib.Path) -> Node:
    """hfi1 and mlx5 beside an iWARP port that counts nothing (node_exporter#966) and a switch-mode CX7 (#3265)."""
    node = Node(root)
    for i, (name, driver) in enumerate((("hfi1_0", "hfi1"), ("mlx5_0", "mlx5_core"), ("mlx5_1", "mlx5_core"))):
        node.function(rail(i), driver=driver)
        node.device(name, rail(i))
    node.port("hfi1_0", rate="100 Gb/sec (4X EDR)", counters=words(), hw_counters={"SwLinkUp,32": "1"})
    node.port("mlx5_0", counters=words())
    node.port("mlx5_1", counters=words() | {"VL15_dropped": EINVAL})
    node.function(rail(3), driver="i40e")
    node.netdev("eth3", rail(3), "10000")
    node.device("i40iw0", rail(3))
    node.port(
        "i40iw0",
        rate="10 Gb/sec (4X)",
        layer="Ethernet",
        counters={"port_xmit_data": NO_PMA, "port_rcv_data": NO_PMA},
    )
    return node


def vf_pod(root: pathlib.Path) -> Node:
    """What a pod sees of its virtual function: rate and state, but no counters in its network namespace."""
    node = Node(root)
    node.function(rail(0))
    node.device("mlx5_3", rail(0))
    node.port("mlx5_3")
    return node


def virtual_functions(root: pathlib.Path, count: int = 2) -> Node:
    """A physical function with virtual ones on the same wire, all visible."""
    node = Node(root)
    node.function(rail(0))
    node.device("mlx5_0", rail(0))
    node.port("mlx5_0", counters=words())
    for i in range(count):
        chain = rail(0).rsplit("/", 1)[0] + f"/0000:12:00.{i + 2}"
        node.function(chain, of=rail(0))
        node.device(f"mlx5_{i + 1}", chain)
        node.port(f"mlx5_{i + 1}", counters=words())
    return node


def mlx4(root: pathlib.Path) -> Node:
    """An old dual-port NIC: one device, two ports at different rates, 64-bit counters in `counters_ext`."""
    node = Node(root)
    node.function(rail(0), driver="mlx4_core")
    node.device("mlx4_0", rail(0))
    for number, rate in ((1, "40 Gb/sec (4X QDR)"), (2, "56 Gb/sec (4X FDR)")):
        node.port("mlx4_0", number, rate=rate, counters=words(2**32 - 1, 2**32 - 1))
        for name in ("port_xmit_data_64", "port_rcv_data_64"):
            node.write(f"class/infiniband/mlx4_0/ports/{number}/counters_ext/{name}", "0")
    return node


def irdma(root: pathlib.Path) -> Node:
    """irdma: IP octets under hw_counters, no `counters` folder (node_exporter#2846)."""
    node = Node(root)
    node.function(rail(0), driver="ice")
    node.device("ibp152s0f0", rail(0))
    octets = dict.fromkeys(("ip4InOctets", "ip4OutOctets", "ip6InOctets", "ip6OutOctets"), "0")
    node.port("ibp152s0f0", rate="100 Gb/sec (4X EDR)", layer="Ethernet", hw_counters=octets)
    return node


def erdma(root: pathlib.Path) -> Node:
    """erdma: its own names under hw_counters."""
    node = Node(root)
    node.function(rail(0), driver="erdma")
    node.device("erdma_0", rail(0))
    node.port(
        "erdma_0",
        rate="100 Gb/sec (4X EDR)",
        layer="Ethernet",
        hw_counters={"hw_tx_bytes_cnt": "0", "hw_rx_bytes_cnt": "0"},
    )
    return node


def nothing(root: pathlib.Path) -> Node:
    """A node without any RDMA device."""
    return Node(root)
