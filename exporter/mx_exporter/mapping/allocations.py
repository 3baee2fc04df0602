"""What the kubelet gave to each pod, as its pod-resources API tells it; pure.

Device plugins name devices each in their own way: `GPU-<uuid>` (with `::3` behind it where GPUs are shared), a PCI
address (SR-IOV), `nvidia0` (GKE), a bare number (shared RDMA device plugin: says nothing). Dynamic resource allocation
names them by driver: `gpu-0` of gpu.nvidia.com is the GPU with that minor number, `pci-0000-1b-00-0` a PCI address.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping

from mx_exporter.mapping import wire
from mx_exporter.model import Gpu, HostGpu, Source
from mx_exporter.nics.values import is_pci_address

_GPU = re.compile(r"(?:GPU|MIG)-[0-9A-Za-z/-]+")
_MINOR = re.compile(r"(?:nvidia|gpu-)(\d{1,3})(?:/.*)?")
_DASHED = re.compile(r"pci-([0-9a-f]{4})-([0-9a-f]{2})-([0-9a-f]{2})-([0-7])")
_GPU_DRIVER = "gpu.nvidia.com"


@dataclasses.dataclass(frozen=True, slots=True)
class Allocation:
    """The devices of one pod, by their identifiers."""

    #: PCI addresses of functions that a plugin named, of whatever kind.
    addresses: tuple[str, ...] = ()
    #: GPUs of the one container that has GPUs: uuids, or minor numbers of the host as text; empty when more have.
    gpus: tuple[str, ...] = ()


Allocations = Mapping[tuple[str, str], Allocation]  # by (namespace, name) of the pod


def parse(response: bytes) -> dict[tuple[str, str], Allocation]:
    """The allocations in a ListPodResourcesResponse; pods without devices are left out.

    Raises:
        ValueError: It is no such message.
    """
    found = {}
    for pod in wire.messages(response, 1):
        name, namespace = _one(wire.texts(pod, 1)), _one(wire.texts(pod, 2))
        containers = [_devices(container) for container in wire.messages(pod, 3)]
        allocation = _allocation(containers)
        if allocation != Allocation():
            found[namespace, name] = allocation
    return found


def _one(texts: tuple[str, ...]) -> str:
    return texts[-1] if texts else ""


def _devices(container: bytes) -> tuple[str, ...]:
    """The identifiers of a container's devices: plugins' first, then dynamically allocated ones."""
    plugins = [device for devices in wire.messages(container, 2) for device in wire.texts(devices, 2)]
    claims = [claim for dynamic in wire.messages(container, 5) for claim in wire.messages(dynamic, 4)]
    return (*plugins, *(_claimed(_one(wire.texts(claim, 2)), _one(wire.texts(claim, 4))) for claim in claims))


def _claimed(driver: str, device: str) -> str:
    """A dynamically allocated device in the words of the plugins; another vendor's `gpu-0` is no NVIDIA GPU."""
    if dashed := _DASHED.fullmatch(device):
        return "{}:{}:{}.{}".format(*dashed.groups())
    return device if driver == _GPU_DRIVER else ""


def _allocation(containers: Iterable[tuple[str, ...]]) -> Allocation:
    addresses: dict[str, None] = {}
    with_gpus: list[tuple[str, ...]] = []
    for devices in containers:
        addresses.update(dict.fromkeys(device.lower() for device in devices if is_pci_address(device.lower())))
        gpus = tuple(dict.fromkeys(filter(None, map(_gpu, devices))))
        if gpus:
            with_gpus.append(gpus)
    return Allocation(tuple(addresses), with_gpus[0] if len(with_gpus) == 1 else ())


def _gpu(device: str) -> str | None:
    """A GPU's uuid, or its minor number as text; None for other devices."""
    identifier = device.partition("::")[0]
    if _GPU.fullmatch(identifier):
        return identifier
    minor = _MINOR.fullmatch(identifier)
    return minor[1] if minor else None


def enriched(
    source: Source, allocations: Allocations, gpus: Iterable[HostGpu], carries_rdma: Callable[[str], bool]
) -> Source:
    """A source with what the kubelet says of its pod, where the source itself did not say it.

    Args:
        source: The source, as discovery found it.
        allocations: What the kubelet gave to whom.
        gpus: The GPUs of this host.
        carries_rdma: Whether the function at a PCI address is an RDMA NIC (a pod may have others of no concern here).
    """
    allocation = allocations.get((source.pod.namespace, source.pod.name))
    if allocation is None:
        return source
    return dataclasses.replace(
        source,
        nic_addresses=source.nic_addresses or tuple(filter(carries_rdma, allocation.addresses)),
        gpus=source.gpus or _numbered(allocation.gpus, tuple(gpus)),
    )


def _numbered(identifiers: tuple[str, ...], host: tuple[HostGpu, ...]) -> tuple[Gpu, ...]:
    """GPUs with the numbers they have inside the container: CUDA counts them in the order of their PCI addresses.

    Where one cannot be found on the host (MIG), the order is not known, and so no numbers are.
    """
    known: dict[str, HostGpu] = {}
    for gpu in host:
        known.update({key: gpu for key in (gpu.uuid, str(gpu.minor)) if key not in ("", "None")})
    if not all(identifier in known for identifier in identifiers):
        return ()
    ordered = sorted({known[identifier].pci_address: known[identifier] for identifier in identifiers}.items())
    return tuple(Gpu(index, gpu.uuid or None, address) for index, (address, gpu) in enumerate(ordered))
