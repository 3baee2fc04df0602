"""How many physical ports a device's traffic is spread over: link aggregation as the bonding driver tells it.

With RoCE link aggregation the kernel registers one RDMA device for both ports and its `rate` file goes on saying the
rate of one (DeepEP#671: 200 Gb/s shown, 372 carried), so the limit is `rate` times the ports in use.
"""

from __future__ import annotations

import dataclasses

from mx_exporter.nics.sysfs import Tree


@dataclasses.dataclass(frozen=True, slots=True)
class Bond:
    """A bond that a device is part of: the PCI addresses that joined it and those that carry traffic now."""

    joined: tuple[str, ...]
    active: tuple[str, ...]


def pci_addresses(parts: tuple[str, ...]) -> tuple[str, ...]:
    """The PCI addresses along a device's path, from the root down: `pci0000:16`, `0000:16:01.0`, `0000:1b:00.0`."""
    return tuple(part for part in parts if _is_pci(part))


def _is_pci(part: str) -> bool:
    domain, _, rest = part.removeprefix("pci").partition(":")
    return len(domain) >= 4 and _hexadecimal(domain) and all(map(_hexadecimal, rest.replace(".", ":").split(":")))


def _hexadecimal(text: str) -> bool:
    return text != "" and all(letter in "0123456789abcdef" for letter in text)


def bond_of(tree: Tree, netdevs: tuple[str, ...]) -> Bond | None:
    """The bond above any of these network interfaces; None when there is none."""
    for netdev in netdevs:
        master = _master(tree, netdev)
        if master is not None:
            slaves = (tree.text(f"class/net/{master}/bonding/slaves") or "").split()
            joined = {slave: _address(tree, slave) for slave in slaves}
            return Bond(
                tuple(address for address in joined.values() if address),
                tuple(address for slave, address in joined.items() if address and _carries(tree, slave)),
            )
    return None


def _master(tree: Tree, netdev: str) -> str | None:
    if tree.exists(f"class/net/{netdev}/bonding"):
        return netdev
    above = tree.target(f"class/net/{netdev}/master")
    return above[-1] if above and tree.exists(f"class/net/{above[-1]}/bonding") else None


def _address(tree: Tree, netdev: str) -> str | None:
    chain = pci_addresses(tree.target(f"class/net/{netdev}/device"))
    return chain[-1] if chain else None


def _carries(tree: Tree, slave: str) -> bool:
    """Whether traffic goes over this port now: its link is up and, with active-backup, it is the active one."""
    if tree.text(f"class/net/{slave}/bonding_slave/mii_status") != "up":
        return False
    return tree.text(f"class/net/{slave}/bonding_slave/state") in (None, "active")


def rails(bond: Bond | None, *, own: str | None, named_bond: bool, others: frozenset[str]) -> int | None:
    """How many physical ports carry a device's traffic.

    Args:
        bond: What the bonding driver says; None when it says nothing.
        own: The device's own PCI address.
        named_bond: Whether the device's name says that it is a bond (`mlx5_bond_0`).
        others: PCI addresses that have an RDMA device of their own; a port that kept its own is no rail of this one.

    Returns:
        At least 1; None when it is a bond by name and nobody says of how many ports.
    """
    if bond is None or own not in bond.joined:
        return None if named_bond else 1
    mine = [address for address in bond.active if address == own or address not in others]
    return max(1, len(mine))
