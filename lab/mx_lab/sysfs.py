"""A node's RDMA devices as files: the part of /sys that an exporter reads, with counters that move.

The layout is the kernel's: devices under their PCI address, class entries as relative symlinks into it, and per port
`state`, `rate` and `counters/` (Documentation/ABI/stable/sysfs-class-infiniband). `port_*_data` count words of four
octets.
"""

from __future__ import annotations

import os
import pathlib
from typing import Final

from mx_lab.traffic import LINK, Nic

_WORD: Final = 4
_PORT_FILES: Final = {
    "state": "4: ACTIVE",
    "phys_state": "5: LinkUp",
    "rate": f"{LINK * 8 / 1e9:g} Gb/sec (4X NDR)",
    "link_layer": "InfiniBand",
    "lid": "0x1",
    "sm_lid": "0x1",
    "cap_mask": "0xa751e848",
}
_COUNTERS: Final = (
    "port_xmit_data",
    "port_rcv_data",
    "port_xmit_packets",
    "port_rcv_packets",
    "port_xmit_wait",
    "link_downed",
    "symbol_error",
)


class NodeSysfs:
    """One node's tree and the open counter files in it."""

    def __init__(self, root: pathlib.Path, nics: list[Nic]) -> None:
        self.root = root
        self._files: list[tuple[Nic, int, int]] = []
        (root / "class" / "infiniband").mkdir(parents=True)
        for index, nic in enumerate(nics):
            counters = self._device(index, nic.source.device)
            transmitted, received = (
                os.open(counters / name, os.O_WRONLY) for name in ("port_xmit_data", "port_rcv_data")
            )
            self._files.append((nic, transmitted, received))

    def _device(self, index: int, device: str) -> pathlib.Path:
        pci = self.root / "devices" / f"pci0000:{0x10 + index:02x}" / f"0000:{0x11 + index:02x}:00.0"
        folder = pci / "infiniband" / device
        port = folder / "ports" / "1"
        (port / "counters").mkdir(parents=True)
        (port / "hw_counters").mkdir()
        for name, text in {"vendor": "0x15b3", "device": "0x1021", "numa_node": "0"}.items():
            (pci / name).write_text(f"{text}\n")
        for name, text in {"board_id": "MT_0000000838", "fw_ver": "28.39.1002", "hca_type": "MT4129"}.items():
            (folder / name).write_text(f"{text}\n")
        (folder / "node_guid").write_text(f"0000:0000:0000:{index + 1:04x}\n")
        (folder / "device").symlink_to("../..")
        (self.root / "class" / "infiniband" / device).symlink_to(
            os.path.relpath(folder, self.root / "class/infiniband")
        )
        for name, text in _PORT_FILES.items():
            (port / name).write_text(f"{text}\n")
        for name in _COUNTERS:
            (port / "counters" / name).write_text("0\n")
        return port / "counters"

    def write(self) -> None:
        """Bring the counter files up to date: in place, each in one write, so that no reader sees half a number."""
        for nic, transmitted, received in self._files:
            os.pwrite(transmitted, b"%d\n" % (nic.transmitted // _WORD), 0)
            os.pwrite(received, b"%d\n" % (nic.received // _WORD), 0)

    def close(self) -> None:
        """Close the files."""
        for _, transmitted, received in self._files:
            os.close(transmitted)
            os.close(received)
