"""Sysfs and procfs trees of whole nodes, laid out as the kernel lays them out: the fake of the exporter's first seam.

Class entries are relative links into `devices/`, a virtual function links to its physical one, a bond to its slaves.
A file that answers EINVAL is a link to one that really does (`/sys/class/net/lo/speed`), so that every reader, not only
ours, gets the kernel's own error.
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Mapping

EINVAL = "\0EINVAL"  # as a file's text: reading it fails with that error
_ANSWERS_EINVAL = "/sys/class/net/lo/speed"
NO_PMA = "N/A (no PMA)"


class Node:
    """A node's `/sys` and `/proc`, written below `root`."""

    def __init__(self, root: pathlib.Path) -> None:
        self.sysfs = root / "sys"
        self.procfs = root / "proc"
        for folder in (self.sysfs / "devices", self.sysfs / "bus/pci/devices", self.procfs):
            folder.mkdir(parents=True, exist_ok=True)

    def write(self, path: str, text: str) -> None:
        """Writes a file of the sysfs tree."""
        file = self.sysfs / path
        file.parent.mkdir(parents=True, exist_ok=True)
        if text == EINVAL:
            file.symlink_to(_ANSWERS_EINVAL)
        else:
            file.write_text(f"{text}\n")

    def link(self, path: str, target: str) -> None:
        """Makes a relative link inside the sysfs tree."""
        file = self.sysfs / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.symlink_to(os.path.relpath(self.sysfs / target, os.path.realpath(file.parent)))

    def function(self, chain: str, *, driver: str = "mlx5_core", numa: int | None = None, of: str = "") -> str:
        """A PCI function at the end of a chain (`pci0000:16/0000:16:01.0/0000:1b:00.0`); returns its folder.

        Args:
            chain: The path from the root complex.
            driver: Its driver; empty for none.
            numa: Its NUMA node.
            of: The chain of its physical function, when it is a virtual one.
        """
        folder = f"devices/{chain}"
        (self.sysfs / folder).mkdir(parents=True, exist_ok=True)
        self.link(f"bus/pci/devices/{chain.split('/')[-1]}", folder)
        if driver:
            (self.sysfs / f"bus/pci/drivers/{driver}").mkdir(parents=True, exist_ok=True)
            self.link(f"{folder}/driver", f"bus/pci/drivers/{driver}")
        if numa is not None:
            self.write(f"{folder}/numa_node", str(numa))
        if of:
            number = len(list((self.sysfs / f"devices/{of}").glob("virtfn*")))
            self.link(f"{folder}/physfn", f"devices/{of}")
            self.link(f"devices/{of}/virtfn{number}", folder)
        return folder

    def device(self, name: str, chain: str, guid: str = "") -> None:
        """An RDMA device on a PCI function."""
        folder = f"devices/{chain}/infiniband/{name}"
        self.write(f"{folder}/node_guid", guid or f"b83f:d203:00{name.encode().hex()[-2:]}:0001")
        self.write(f"{folder}/fw_ver", "28.39.1002")
        self.write(f"{folder}/hca_type", "MT4129")
        self.write(f"{folder}/board_id", "MT_0000000838")
        self.link(f"{folder}/device", f"devices/{chain}")
        self.link(f"class/infiniband/{name}", folder)

    def port(
        self,
        device: str,
        number: int = 1,
        *,
        rate: str | None = "400 Gb/sec (4X NDR)",
        state: str | None = "4: ACTIVE",
        layer: str = "InfiniBand",
        counters: Mapping[str, str] | None = None,
        hw_counters: Mapping[str, str] | None = None,
    ) -> None:
        """A port of an RDMA device; a file whose text is None is not there."""
        base = f"class/infiniband/{device}/ports/{number}"
        files = {"rate": rate, "state": state, "phys_state": "5: LinkUp", "link_layer": layer}
        for name, text in files.items():
            if text is not None:
                self.write(f"{base}/{name}", text)
        for folder, values in (("counters", counters), ("hw_counters", hw_counters)):
            for name, text in (values or {}).items():
                self.write(f"{base}/{folder}/{name}", text)

    def netdev(self, name: str, chain: str, speed: str = "400000") -> None:
        """A network interface on a PCI function."""
        folder = f"devices/{chain}/net/{name}"
        self.write(f"{folder}/speed", speed)
        self.link(f"{folder}/device", f"devices/{chain}")
        self.link(f"class/net/{name}", folder)

    def bond(self, name: str, slaves: Mapping[str, str], mode: str = "802.3ad 4") -> None:
        """A bond over interfaces, each with the word in its `state` (active, backup)."""
        folder = f"devices/virtual/net/{name}"
        self.write(f"{folder}/bonding/slaves", " ".join(slaves))
        self.write(f"{folder}/bonding/mode", mode)
        self.link(f"class/net/{name}", folder)
        for slave, state in slaves.items():
            self.link(f"class/net/{slave}/master", folder)
            self.write(f"class/net/{slave}/bonding_slave/mii_status", "up")
            self.write(f"class/net/{slave}/bonding_slave/state", state)

    def gpu(self, chain: str, uuid: str, minor: int, numa: int | None = None) -> None:
        """An NVIDIA GPU, on the PCI tree and in the driver's procfs."""
        self.function(chain, driver="nvidia", numa=numa)
        file = self.procfs / f"driver/nvidia/gpus/{chain.split('/')[-1]}/information"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(
            f"Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 18\nGPU UUID: \t {uuid}\n"
            f"Bus Location: \t {chain.split('/')[-1]}\nDevice Minor: \t {minor}\n"
        )

    def file(self, device: str, name: str, port: int = 1) -> pathlib.Path:
        """A file of a port, to read or overwrite."""
        return self.sysfs / f"class/infiniband/{device}/ports/{port}/{name}"

    def add(self, device: str, name: str, amount: int, port: int = 1) -> None:
        """Adds to a counter of a port."""
        file = self.file(device, name, port)
        file.write_text(f"{int(file.read_text()) + amount}\n")
