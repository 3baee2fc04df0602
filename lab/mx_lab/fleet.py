"""What the lab's fleet consists of: pure values, made from the command line's numbers."""

from __future__ import annotations

import dataclasses
import enum
import random
from collections.abc import Iterator
from typing import Final

MODEL: Final = "lab/llama-8b"
ENGINE_PORT: Final = 8000
EXPORTER_PORT: Final = 9500
#: A worker's gRPC port is this plus the number of its device (the released client's MX_WORKER_GRPC_PORT).
WORKER_PORT: Final = 6555


class Busy(enum.Enum):
    """What keeps a source busy."""

    NO = "no"
    NIC = "NIC"
    KV = "KV cache"


@dataclasses.dataclass(frozen=True)
class LabSource:
    """One serving pod with one GPU and one NIC of its node."""

    name: str
    node: int
    device: str
    ip: str
    engine: str
    worker_id: str
    busy: Busy
    serving_tx: float  # share of the NIC that serving sends, on average
    kv: float  # KV cache in use, on average

    @property
    def load(self) -> float:
        """The load it really has from serving: what an honest `source_load` would say."""
        return max(self.serving_tx, self.kv)


@dataclasses.dataclass(frozen=True)
class Node:
    """One machine: an address for its exporter, and its sources."""

    number: int
    ip: str
    sources: tuple[LabSource, ...]


@dataclasses.dataclass(frozen=True)
class Fleet:
    """All nodes."""

    nodes: tuple[Node, ...]

    def __iter__(self) -> Iterator[LabSource]:
        return (source for node in self.nodes for source in node.sources)

    @property
    def busy_share(self) -> float:
        """The share of sources that are busy, which is what a blind choice hits."""
        everyone = list(self)
        return sum(source.busy is not Busy.NO for source in everyone) / len(everyone)


def make_fleet(sources: int, nodes: int, busy_nic: int, busy_kv: int, network: int, seed: int) -> Fleet:
    """Lay out a fleet.

    Args:
        sources: How many in all; spread over the nodes in turn, each with a NIC of its own.
        nodes: How many nodes.
        busy_nic: How many sources are busy through their NIC.
        busy_kv: How many through their KV cache.
        network: Second octet of every address: 127.network.node.host.
        seed: Of worker ids and idle levels.

    Raises:
        ValueError: The numbers do not make a fleet; says which and why.
    """
    if not 1 <= nodes <= 200 or sources < nodes or sources > nodes * 8:
        raise ValueError(f"{sources} sources on {nodes} nodes: give 1 to 200 nodes and 1 to 8 sources a node")
    if busy_nic < 0 or busy_kv < 0 or busy_nic + busy_kv >= sources:
        raise ValueError(f"{busy_nic} + {busy_kv} busy of {sources} sources: at least one must be idle")
    rnd = random.Random(seed)
    kinds = [Busy.NIC] * busy_nic + [Busy.KV] * busy_kv
    kinds += [Busy.NO] * (sources - len(kinds))
    rnd.shuffle(kinds)
    made = [_source(index, index % nodes, index // nodes, kind, network, rnd) for index, kind in enumerate(kinds)]
    return Fleet(
        tuple(
            Node(number, f"127.{network}.{number + 1}.1", tuple(source for source in made if source.node == number))
            for number in range(nodes)
        )
    )


def _source(index: int, node: int, rail: int, busy: Busy, network: int, rnd: random.Random) -> LabSource:
    return LabSource(
        name=f"worker-{index}",
        node=node,
        device=f"mlx5_{rail}",
        ip=f"127.{network}.{node + 1}.{10 + rail}",
        engine="sglang" if index % 2 else "vllm",
        worker_id=f"{rnd.getrandbits(32):08x}",
        busy=busy,
        serving_tx=0.9 if busy is Busy.NIC else rnd.uniform(0.02, 0.10),
        kv=0.9 if busy is Busy.KV else rnd.uniform(0.05, 0.15),
    )
