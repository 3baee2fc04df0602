"""The exporter's nouns: frozen values that the parsers make, the decisions take and the exposition shows.

No I/O here and no clock: every time in these values is seconds of one monotonic clock, read by whoever made them.
"""

from __future__ import annotations

import dataclasses
import enum


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Pod:
    """The pod a source runs in; with static discovery, whatever the file says in these terms."""

    namespace: str
    name: str
    uid: str
    ip: str


@dataclasses.dataclass(frozen=True, slots=True)
class Endpoint:
    """A page of metrics that an engine serves on its pod's own address."""

    port: int
    path: str | None = None  # None: the usual ones are tried (/metrics, /prometheus/metrics)
    scheme: str = "http"


@dataclasses.dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU given to a pod. `index` is its number inside the container, which is what MX's ports count by."""

    index: int
    uuid: str | None = None
    pci_address: str | None = None  # 0000:1b:00.0, lower case


@dataclasses.dataclass(frozen=True, slots=True)
class Source:
    """Something on this node that may serve weights, as discovery found it."""

    pod: Pod
    endpoints: tuple[Endpoint, ...] = ()
    #: Devices or device:port that the pod names itself (annotation, UCX_NET_DEVICES, MX_RDMA_NIC_PIN).
    nic_devices: tuple[str, ...] = ()
    #: PCI addresses of the NIC functions that a device plugin gave to the pod.
    nic_addresses: tuple[str, ...] = ()
    gpus: tuple[Gpu, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class PortId:
    """One port of one RDMA device; its `hw_id` is `mlx5_0/1`."""

    device: str
    port: int

    @property
    def hw_id(self) -> str:
        """The OpenTelemetry `hw.id` of the port."""
        return f"{self.device}/{self.port}"


class Direction(enum.Enum):
    """OpenTelemetry's `network.io.direction`."""

    TRANSMIT = "transmit"
    RECEIVE = "receive"


@dataclasses.dataclass(frozen=True, slots=True)
class Usage:
    """What one engine says of its KV cache: a ratio, or why there is none."""

    engine: str  # the kind: vllm, sglang, ...
    engine_index: str  # data-parallel rank where the engine names one, else ""
    value: float | None  # in [0, 1]
    reason: str | None  # why value is None
    at: float  # when the page was read


class Mapping(enum.Enum):
    """How a source was mapped to its NICs, best first; the label `nic_mapping`."""

    EXPLICIT = "explicit"
    PCI = "pci"
    AFFINITY = "affinity"
    BUSIEST = "busiest"
    NONE = "none"


@dataclasses.dataclass(frozen=True, slots=True)
class SourceLoad:
    """The blended load of one source, or of one GPU of it where its GPUs sit on different rails."""

    pod: Pod
    gpu: str  # index inside the container, or "" for the whole pod
    mapping: Mapping
    nic: float | None  # larger direction of the mapped ports, in [0, 1]
    kv: float | None  # largest engine, in [0, 1]
    unknown: tuple[tuple[str, str], ...]  # (part, reason) of each part that has no value

    @property
    def load(self) -> float | None:
        """The larger of the known parts; None when none is known."""
        known = [part for part in (self.nic, self.kv) if part is not None]
        return max(known) if known else None
