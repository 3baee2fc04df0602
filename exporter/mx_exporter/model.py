"""The exporter's nouns: frozen values that the parsers make, the decisions take and the exposition shows.

No I/O here and no clock: every time in these values is seconds of one monotonic clock, read by whoever made them.
Discovery makes `Source`s, the engines make `Usage`s, the NIC side makes `Device`s, `PortReading`s and `PortStatus`es;
the blend makes one `SourceLoad` per source (or per GPU of it), and a `Snapshot` holds all that one tick knew.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping as MappingType


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
    #: The same, one per GPU in the order of the GPUs' indices (MX_RDMA_NIC_PIN with a comma); goes before nic_devices.
    nic_pins: tuple[str, ...] = ()
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
    """OpenTelemetry's `network.io.direction`; an RDMA READ of weights is transmit at the source."""

    TRANSMIT = "transmit"
    RECEIVE = "receive"


@dataclasses.dataclass(frozen=True, slots=True)
class Device:
    """What is fixed about an RDMA device for as long as it stays registered."""

    name: str
    #: Changes when the device goes and comes back, even under the same name: its counters start anew then.
    identity: str
    ports: tuple[int, ...]
    driver: str = ""  # mlx5_core, bnxt_en, ...; "" when sysfs does not say
    link_layer: str = ""  # of its first port: InfiniBand, Ethernet, Unspecified (EFA)
    pci_address: str | None = None
    #: The chain of PCI addresses from the root complex down to the device, both included.
    pci_path: tuple[str, ...] = ()
    numa_node: int | None = None
    #: PCI address of the physical function, when this device is a virtual one.
    physical_function: str | None = None
    #: PCI addresses of virtual functions that exist but whose RDMA devices cannot be seen from here.
    hidden_functions: tuple[str, ...] = ()
    #: PCI addresses of the other ports that a bond joined to this device.
    bonded_addresses: tuple[str, ...] = ()
    #: Physical ports that carry this device's traffic now; None when it is a bond of unknown width.
    rails: int | None = 1


@dataclasses.dataclass(frozen=True, slots=True)
class Count:
    """A byte counter as read: its value, or why there is none."""

    value: int | None
    at: float  # the clock, read beside the counter
    reason: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class PortReading:
    """One port at one tick, as the files said it."""

    port: PortId
    identity: str  # of its device and of the files the bytes came from: another identity is another counter
    active: bool | None  # None: the state could not be read
    limit: float | None  # bytes a second in each direction; None unless active and believable
    transmit: Count
    receive: Count
    #: Whatever could not be read or believed on this tick, as (part, reason).
    faults: tuple[tuple[str, str], ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Flow:
    """One direction of one port over the window that ended at the last tick."""

    total: int | None = None  # bytes since the device appeared
    rate: float | None = None  # bytes a second
    utilization: float | None = None  # in [0, 1]
    peak: float | None = None  # the highest of the last 30 s, in [0, 1]
    reason: str | None = None  # why utilization is None


@dataclasses.dataclass(frozen=True, slots=True)
class PortStatus:
    """One port as the exposition shows it. A physical function's flows include those of its virtual functions."""

    port: PortId
    device: Device
    up: bool | None
    limit: float | None
    transmit: Flow
    receive: Flow

    def flow(self, direction: Direction) -> Flow:
        """The flow of one direction."""
        return self.transmit if direction is Direction.TRANSMIT else self.receive


@dataclasses.dataclass(frozen=True, slots=True)
class NicView:
    """All ports at one tick."""

    statuses: MappingType[PortId, PortStatus] = dataclasses.field(default_factory=dict)
    #: Port of a virtual function -> port whose flows are its wire's; only where the two differ.
    carriers: MappingType[PortId, PortId] = dataclasses.field(default_factory=dict)
    #: (device, port, reason) -> how often since the port appeared; port "" for the device as a whole.
    errors: MappingType[tuple[str, str, str], int] = dataclasses.field(default_factory=dict)
    #: What a person should know: that there are no ports, or that this is the wrong /sys.
    hint: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Usage:
    """What one engine says of its KV cache: a ratio, or why there is none."""

    engine: str  # the kind: vllm, sglang, ...
    engine_index: str  # data-parallel rank where the engine names one, else ""
    value: float | None  # in [0, 1]
    reason: str | None  # why value is None
    at: float  # when the page was read


@dataclasses.dataclass(frozen=True, slots=True)
class HostGpu:
    """A GPU as the driver on this host knows it."""

    pci_address: str
    uuid: str = ""
    minor: int | None = None  # the number in /dev/nvidiaN


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """Where a PCI function sits: its chain of PCI addresses from the root complex down, and its NUMA node."""

    path: tuple[str, ...] = ()
    numa_node: int | None = None


class Mapping(enum.Enum):
    """How a source was mapped to its NICs, best first; the label `nic_mapping`."""

    EXPLICIT = "explicit"
    PCI = "pci"
    AFFINITY = "affinity"
    BUSIEST = "busiest"
    NONE = "none"


@dataclasses.dataclass(frozen=True, slots=True)
class Assignment:
    """The NIC ports of one source, or of one GPU of it where its GPUs sit on different rails."""

    gpu: str  # index inside the container, or "" for the whole pod
    mapping: Mapping
    ports: tuple[PortId, ...]  # those whose flows count; empty with a reason
    reason: str | None = None  # why there are none


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
