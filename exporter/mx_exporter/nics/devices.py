"""What is fixed about every RDMA device: driver, place on the PCI tree, physical function, bond. Read now and then."""

from __future__ import annotations

import re

from mx_exporter.model import Device
from mx_exporter.nics.bonds import bond_of, pci_addresses, rails
from mx_exporter.nics.sysfs import Tree
from mx_exporter.nics.values import parse_integer

CLASS = "class/infiniband"
_PCI = "bus/pci/devices"
# A name that is none of these cannot be a label; the kernel would not make it.
_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,63}", re.ASCII)


def device_names(tree: Tree) -> tuple[str, ...]:
    """The names of the RDMA devices, in order; empty on a node that has none (node_exporter#1511).

    Raises:
        UnreadableError: The class folder is there and cannot be listed.
    """
    return tuple(name for name in tree.names(CLASS) if _NAME.fullmatch(name)) if tree.exists(CLASS) else ()


def identity(tree: Tree, name: str) -> str | None:
    """What changes when a device goes and comes back under the same name; None when it is gone."""
    inode = tree.inode(f"{CLASS}/{name}")
    return None if inode is None else f"{inode}/{tree.text(f'{CLASS}/{name}/node_guid') or ''}"


def addresses(tree: Tree, names: tuple[str, ...]) -> dict[str, str]:
    """The PCI address of every device that is on a PCI bus, by name."""
    chains = {name: pci_addresses(tree.target(f"{CLASS}/{name}/device")) for name in names}
    return {name: chain[-1] for name, chain in chains.items() if chain}


def describe(tree: Tree, name: str, identity: str, by_name: dict[str, str]) -> Device:
    """All that is fixed about one device. What cannot be read is left at its default; nothing is raised.

    Args:
        tree: The sysfs root.
        name: The device's name in the class folder.
        identity: As `identity` said.
        by_name: As `addresses` said of all devices, to tell which virtual functions can be seen.
    """
    base = f"{CLASS}/{name}"
    chain = pci_addresses(tree.target(f"{base}/device"))
    own = chain[-1] if chain else None
    seen = frozenset(by_name.values())
    bond = bond_of(tree, netdevs(tree, name))
    joined = bond.joined if bond and own in bond.joined else ()
    elsewhere = tuple(address for address in joined if address != own and address not in seen)
    ports = _ports(tree, name)
    return Device(
        name=name,
        identity=identity,
        ports=ports,
        driver=(tree.target(f"{base}/device/driver") or ("",))[-1],
        link_layer=tree.text(f"{base}/ports/{ports[0]}/link_layer") or "" if ports else "",
        pci_address=own,
        pci_path=chain,
        numa_node=_numa_node(tree, base),
        physical_function=(pci_addresses(tree.target(f"{base}/device/physfn")) or (None,))[-1],
        hidden_functions=_hidden(tree, (f"{base}/device", *(f"{_PCI}/{address}" for address in elsewhere)), seen),
        bonded_addresses=elsewhere,
        rails=rails(bond, own=own, named_bond="bond" in name, others=seen),
    )


def netdevs(tree: Tree, name: str) -> tuple[str, ...]:
    """The network interfaces that belong to a device: those it names itself, then those on its PCI function."""
    named = tree.text(f"{CLASS}/{name}/ports/1/gid_attrs/ndevs/0")
    found = (named,) if named and _NAME.fullmatch(named) else ()
    return (*found, *(other for other in tree.inside(f"{CLASS}/{name}/device/net") if other not in found))


def _ports(tree: Tree, name: str) -> tuple[int, ...]:
    names = tree.inside(f"{CLASS}/{name}/ports")
    return tuple(sorted(int(port) for port in names if re.fullmatch(r"[1-9]\d{0,3}", port, re.ASCII)))


def _numa_node(tree: Tree, base: str) -> int | None:
    node = parse_integer(tree.text(f"{base}/device/numa_node"))
    return node if node is not None and node >= 0 else None


def _hidden(tree: Tree, functions: tuple[str, ...], seen: frozenset[str]) -> tuple[str, ...]:
    """Virtual functions that can move bytes but whose counters are in another network namespace or in a guest."""
    found = []
    for path in (f"{function}/{name}" for function in functions for name in _virtual(tree, function)):
        chain = pci_addresses(tree.target(path))
        if chain and chain[-1] not in seen and _moves_bytes(tree, path):
            found.append(chain[-1])
    return tuple(sorted(found))


def _virtual(tree: Tree, function: str) -> tuple[str, ...]:
    return tuple(name for name in tree.inside(function) if re.fullmatch(r"virtfn\d+", name, re.ASCII))


def _moves_bytes(tree: Tree, function: str) -> bool:
    driver = (tree.target(f"{function}/driver") or ("",))[-1]
    return driver.startswith("vfio") or (driver != "" and tree.exists(f"{function}/infiniband"))
