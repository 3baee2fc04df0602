"""Candidates and targets for the tests of the selector, ours and the released client's."""

from __future__ import annotations

import random
import types
from collections.abc import Iterable, Sequence
from typing import Any

from mx_selector import Target
from mx_wire import SourceInstanceRef
from tests.parts import released

TARGET = Target("m", "t", 0)
UNSET = None


def row(worker_id: str, load: float | None = None, **fields: Any) -> SourceInstanceRef:
    """One of our rows; no load means that none was published."""
    known = {} if load is None else {"source_load": load}
    return SourceInstanceRef(**{"mx_source_id": "s", "worker_id": worker_id, **known, **fields})


def rows(loads: Iterable[float | None]) -> list[SourceInstanceRef]:
    """Rows w0, w1, ... with these loads."""
    return [row(f"w{i}", load) for i, load in enumerate(loads)]


def targets(count: int, model: str = "m") -> list[Target]:
    """Replicas named as the released client names them, from a fixed seed."""
    names = random.Random(7)
    return [Target(model, f"{names.getrandbits(32):08x}", 0) for _ in range(count)]


def ids(ranked: Sequence[Any]) -> list[str]:
    return [r.worker_id for r in ranked]


def context(target: Target) -> Any:
    """The released client's LoadContext, as far as its selectors read it."""
    identity = types.SimpleNamespace(model_name=target.model_name)
    return types.SimpleNamespace(identity=identity, worker_id=target.worker_id, worker_rank=target.worker_rank)


_THEIRS = {
    "rendezvous_hash": "RendezvousHashSelector",
    "load_aware": "LoadAwareSelector",
    "topology_aware": "TopologyAwareSelector",
}


def theirs(name: str) -> Any:
    """A selector of the released client, made from the present environment; by class, never one registered over it."""
    selector = getattr(released.module("source_selection"), _THEIRS[name])()
    assert type(selector).__module__ == "modelexpress.source_selection"
    return selector


def their_row(source: SourceInstanceRef) -> Any:
    """The same row as the released client would have parsed it."""
    return released.module("p2p_pb2").SourceInstanceRef.FromString(source.SerializeToString())
