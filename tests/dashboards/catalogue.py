"""Every metric that our code makes: its type and labels, read off the code itself with everything it can show."""

from __future__ import annotations

import dataclasses
import functools
import random
from collections.abc import Iterator
from typing import Any

from opentelemetry.sdk.resources import Resource
from prometheus_client.parser import text_string_to_metric_families

from mx_exporter import exposition, model
from mx_exporter.engines.status import ScrapeStatus
from mx_exporter.model import NicView
from mx_exporter.snapshot import Snapshot
from mx_operator.core.ledgers import Ledger
from mx_operator.core.memory import Memory, RowMemory
from mx_operator.core.model import Identity, Outcome, Result, Row, SourceKey, Write
from mx_operator.core.reports import Check, Counts, PolicyReport
from mx_operator.telemetry.metrics import Metrics
from mx_selector.telemetry import families as selector
from mx_server.telemetry import Telemetry

#: What Prometheus and its client add of their own accord.
_ADDED = ("_created",)
_OF_THE_PROCESS = ("python_", "process_", "target_info")


@dataclasses.dataclass(frozen=True, order=True)
class Metric:
    """One metric of one component, as Prometheus names it (a counter with `_total`)."""

    component: str
    name: str
    type: str
    labels: frozenset[str] = dataclasses.field(compare=False)


def _of_page(component: str, page: str) -> Iterator[Metric]:
    for family in text_string_to_metric_families(page):
        if family.name.endswith(_ADDED) or family.name.startswith(_OF_THE_PROCESS) or not family.samples:
            continue
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        yield Metric(component, name, family.type, frozenset(labels))


def _exporter() -> str:
    pod = model.Pod("ns", "pod", "uid", "10.0.0.1")
    flow = model.Flow(total=1, rate=1.0, utilization=0.5, peak=0.5, reason="baseline")
    device = model.Device("mlx5_0", "x", (1,))
    status = model.PortStatus(model.PortId("mlx5_0", 1), device, True, 1e9, flow, flow)
    snapshot = Snapshot(
        at=1.0,
        wall=1.0,
        duration=0.1,
        nics=NicView({status.port: status}, errors={("mlx5_0", "1", "reset"): 1}),
        sources=(model.Source(pod),),
        loads=(model.SourceLoad(pod, "", model.Mapping.EXPLICIT, 0.5, 0.5, (("kv", "frozen"),)),),
        usages={pod: (model.Usage("vllm", "0", 0.5, None, 1.0),)},
        scrapes=(ScrapeStatus(pod, 8000, True, 0.1, None, 1.0),),
        discovery_age=1.0,
    )
    return exposition.Pages(Resource({})).page(snapshot)[0].decode()


def _operator() -> str:
    key, yes = SourceKey("id", "worker"), Check(True, "Ok")
    write = Write(key, 0, 0.5, 1, 1.0, 2.0, "fleet")
    report: Any = _filled(
        PolicyReport,
        policy="fleet",
        counts=_filled(Counts),
        skips={"unchanged": 1},
        signal_ages={"exporter": 1.0},
        **dict.fromkeys(("prometheus", "server", "load_supported", "data_fresh", "heartbeat"), yes),
    )
    ledger = Ledger(random.Random(0))
    ledger.memory = Memory({key: RowMemory(0, 0.5, 1, 0.0, wrote=0.5, sent_at=1.0)})
    cycle: Any = _Cycle(
        started=0.0,
        ended=1.0,
        rows=(Row(key, 0, "model", 1, 0.5),),
        identities={key: Identity(host="10.0.0.1", pod_name="pod")},
        outcomes=(Outcome(write, Result.ACCEPTED, 0.0, 1.0),),
        ledger=ledger,
    )
    metrics = Metrics(written=True)
    endpoint: Any = "endpoint"
    metrics.saw(endpoint, cycle, [report])
    return metrics.page().decode()


def _filled(kind: Any, **given: Any) -> Any:
    """A dataclass with 1 for whatever is not given."""
    return kind(**{field.name: given.get(field.name, 1) for field in dataclasses.fields(kind)})


@dataclasses.dataclass
class _Cycle:
    started: float
    ended: float
    rows: tuple[Row, ...]
    identities: dict[SourceKey, Identity]
    outcomes: tuple[Outcome, ...]
    ledger: Ledger


def _server() -> str:
    telemetry = Telemetry("memory")
    telemetry.answered("ListSources", "ok", 0.1)
    telemetry.backend_failed("list")
    telemetry.scanned({2: 1})
    telemetry.reaped("stale", 1)
    telemetry.judged("allowed")
    return telemetry.page().decode()


def _selector() -> Iterator[Metric]:
    everything = (*selector.ALL, selector.SELECTIONS_BY_SOURCE, selector.SOURCE_LOADS)
    for family in everything:
        name = f"{family.name}_total" if family.kind is selector.Kind.COUNTER else family.name
        yield Metric("selector", name, family.kind.value, frozenset(family.labels) | {"scheme"})


@functools.cache
def in_code() -> frozenset[Metric]:
    """All of them."""
    pages = {"exporter": _exporter(), "operator": _operator(), "server": _server()}
    found = [metric for component, page in pages.items() for metric in _of_page(component, page)]
    return frozenset([*found, *_selector()])
