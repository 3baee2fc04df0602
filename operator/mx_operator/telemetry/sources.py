"""The series of the listed sources, as lines of Prometheus' text format: written directly, for `metrics.Metrics`.

Made into samples first, ten thousand sources would take 20 MB. A source that is no longer listed has no series.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence

from mx_operator.core.memory import RowMemory
from mx_operator.core.model import Identity, Row, SourceKey


@dataclasses.dataclass(frozen=True, slots=True)
class Listed:
    """What an endpoint listed last, and what is known of it; nobody changes it any more."""

    rows: Sequence[Row]
    identities: Mapping[SourceKey, Identity]
    memory: Mapping[SourceKey, RowMemory]


@dataclasses.dataclass(frozen=True, slots=True)
class Source:
    """One listed source with what is known of it."""

    row: Row
    identity: Identity | None
    memory: RowMemory | None

    def labels(self, **more: str) -> str:
        """The labels that say which source it is, and others."""
        return _labels(
            {
                "source_worker_id": self.row.key.worker_id,
                "mx_source_id": self.row.key.mx_source_id,
                "worker_rank": str(self.row.worker_rank),
                **more,
            }
        )


def each(everything: Iterable[Listed]) -> list[Source]:
    """Each listed source once: two endpoints may be one server, and a series twice would spoil the whole page."""
    found: dict[SourceKey, Source] = {}
    for listed in everything:
        for row in listed.rows:
            memory, before = listed.memory.get(row.key), found.get(row.key)
            if before is None:
                found[row.key] = Source(row, listed.identities.get(row.key), memory)
            elif _wrote_later(memory, before.memory):
                found[row.key] = dataclasses.replace(before, memory=memory)
    return list(found.values())


def _wrote_later(memory: RowMemory | None, other: RowMemory | None) -> bool:
    return memory is not None and (other is None or memory.sent_at > other.sent_at)


def listing(sources: Sequence[Source], scheme: str) -> Iterator[str]:
    """What the server lists, and where each source is."""
    yield from _head("mx_p2p_source_load", "The load a server has stored for a READY source.")
    yield from (f"mx_p2p_source_load{labels} {load!r}\n" for labels, load in _loads(sources, scheme).items())
    yield from _head("mx_p2p_source_info", "1, with where a READY source is.")
    for source in sources:
        place = source.identity or Identity()
        labels = source.labels(k8s_pod_ip=place.host or "", k8s_pod_name=place.pod_name or "")
        yield f"mx_p2p_source_info{labels} 1\n"


def _loads(sources: Iterable[Source], scheme: str) -> dict[str, float]:
    """By labels, which name no mx_source_id: of a worker that serves one model under two, the higher load."""
    loads: dict[str, float] = {}
    for source in sources:
        row = source.row
        if row.load is not None:
            labels = _labels(
                {
                    "scheme": scheme,
                    "source_worker_id": row.key.worker_id,
                    "model_name": row.model_name,
                    "worker_rank": str(row.worker_rank),
                    "origin": "listing",
                }
            )
            loads[labels] = max(row.load, loads.get(labels, row.load))
    return loads


def written(sources: Iterable[Source], wall_less_monotonic: float) -> Iterator[str]:
    """What this process wrote last for each source and the server accepted, and when.

    Args:
        sources: Those listed.
        wall_less_monotonic: What turns a time of the monotonic clock into Unix seconds.
    """
    wrote = [
        (source.labels(), source.memory)
        for source in sources
        if source.memory is not None and source.memory.wrote is not None
    ]
    yield from _head("mx_operator_written_load", "The load that this operator wrote last for a READY source.")
    yield from (f"mx_operator_written_load{labels} {memory.wrote!r}\n" for labels, memory in wrote)
    yield from _head("mx_operator_written_timestamp_seconds", "When it did.")
    for labels, memory in wrote:
        yield f"mx_operator_written_timestamp_seconds{labels} {round(memory.sent_at + wall_less_monotonic, 3)!r}\n"


def _head(name: str, said: str) -> tuple[str, str]:
    return f"# HELP {name} {said}\n", f"# TYPE {name} gauge\n"


def _labels(labels: Mapping[str, str]) -> str:
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    if "\\" in value or '"' in value or "\n" in value:
        return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return value
