"""Where the GPUs are: identifiers to PCI addresses from `/proc/driver/nvidia/gpus`, PCI addresses to their places.

No GPU library is needed: the driver's own procfs names every GPU by its PCI address, and sysfs has the PCI tree.
"""

from __future__ import annotations

from mx_exporter.model import Gpu, HostGpu, Place
from mx_exporter.nics.bonds import pci_addresses
from mx_exporter.nics.sysfs import Tree
from mx_exporter.nics.values import is_pci_address, parse_integer

_GPUS = "driver/nvidia/gpus"


def host_gpus(procfs: Tree) -> tuple[HostGpu, ...]:
    """The GPUs of this host by PCI address; empty where the driver is not loaded."""
    found = []
    for name in procfs.inside(_GPUS):
        address = name.lower()
        if is_pci_address(address):
            facts = _facts(procfs.text(f"{_GPUS}/{name}/information") or "")
            found.append(HostGpu(address, facts.get("gpu uuid", ""), parse_integer(facts.get("device minor"))))
    return tuple(found)


def _facts(text: str) -> dict[str, str]:
    """The `Name: value` lines of an information file."""
    pairs = (line.partition(":") for line in text.splitlines())
    return {name.strip().lower(): value.strip() for name, _, value in pairs}


def place(sysfs: Tree, address: str) -> Place | None:
    """Where a PCI function sits; None when it is not on this host."""
    if not is_pci_address(address):
        return None
    path = pci_addresses(sysfs.target(f"bus/pci/devices/{address}"))
    if not path:
        return None
    node = parse_integer(sysfs.text(f"bus/pci/devices/{address}/numa_node"))
    return Place(path, node if node is not None and node >= 0 else None)


def carries_rdma(sysfs: Tree, address: str) -> bool:
    """Whether the function at a PCI address has an RDMA device, in whatever network namespace that is."""
    return sysfs.exists(f"bus/pci/devices/{address}/infiniband")


def places(sysfs: Tree, procfs: Tree, gpus: tuple[Gpu, ...]) -> dict[int, Place]:
    """The place of each GPU, by its index inside the container; those that cannot be found are left out."""
    by_uuid: dict[str, str] = {}
    if any(gpu.pci_address is None and gpu.uuid for gpu in gpus):
        by_uuid = {gpu.uuid: gpu.pci_address for gpu in host_gpus(procfs)}
    found: dict[int, Place] = {}
    for gpu in gpus:
        address = gpu.pci_address or by_uuid.get(gpu.uuid or "")
        where = place(sysfs, address) if address else None
        if where is not None:
            found[gpu.index] = where
    return found
