"""Small series made by hand, and the one right answer of a panel to each.

Every case has a job of its own, by which all queries choose, so that one Prometheus serves them all.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence
from typing import Final

import pytest

from tests.dashboards import fleets, openmetrics, panels
from tests.dashboards.history import END, History, history
from tests.parts import prometheus

#: A series as PromQL writes it, without its job, and its value: constant, or (before, after) of two minutes ago.
Written = tuple[str, float | tuple[float | None, float | None]]


@dataclasses.dataclass(frozen=True)
class Case:
    """A question, what there is, and the answer.

    Attributes:
        question: Board, panel and letter of the query.
        why: What it shows.
        series: What there is.
        answer: Label that tells the answer's series apart -> value; the label is `by`.
        by: That label; empty for one series.
        values: Grafana's variables where they are not the ordinary ones.
    """

    question: str
    why: str
    series: Sequence[Written]
    answer: dict[str, float]
    by: str = ""
    values: tuple[tuple[str, str], ...] = ()


def chosen(target: str, load: float, value: float | tuple[float | None, float | None]) -> list[Written]:
    """A target's histogram of chosen loads: as many observations as `value`, all of them `load`."""
    labels = f'instance="{target}", policy="p"'
    below = value if load <= 0.7 else _times(value, 0)
    return [
        (f'mx_selector_chosen_load_bucket{{{labels}, le="0.7"}}', below),
        (f'mx_selector_chosen_load_bucket{{{labels}, le="+Inf"}}', value),
        (f"mx_selector_chosen_load_count{{{labels}}}", value),
    ]


def _times(
    value: float | tuple[float | None, float | None], factor: float
) -> float | tuple[float | None, float | None]:
    if isinstance(value, tuple):
        return (None if value[0] is None else value[0] * factor, None if value[1] is None else value[1] * factor)
    return value * factor


def row(worker: str, load: float | None, ip: str = "", operator: str = "o1") -> list[Written]:
    """A source as an operator lists it."""
    common = f'instance="{operator}", source_worker_id="{worker}"'
    info: list[Written] = [(f'mx_p2p_source_info{{{common}, mx_source_id="i", k8s_pod_ip="{ip}"}}', 1)]
    if load is None:
        return info
    return [*info, (f'mx_p2p_source_load{{{common}, model_name="m", origin="listing"}}', load)]


def pod(name: str, ip: str, load: float) -> Written:
    """A source as its node's exporter measures it."""
    return (
        f'mx_source_load{{instance="node", k8s_namespace_name="n", k8s_pod_name="{name}", k8s_pod_ip="{ip}"}}',
        load,
    )


BORN: Final = (None, 1.0)
ONE: Final = {"": 1.0}


def cases() -> Iterator[Case]:
    """All of them."""
    tens = [one for number in range(10) for one in chosen(f"t{number}", 0.9 if number < 3 else 0.2, BORN)]
    share = "mx-rollout / Pulls to busy / A"
    yield Case(share, "targets that were born with their one pull count; 3 of 10", tens, {"": 0.3})
    yield Case(share, "pulls of long ago do not", [*tens, *chosen("old", 0.9, 500)], {"": 0.3})
    yield Case(share, "an old target's new pulls do: 2 of 12 more", [*tens, *chosen("old", 0.2, (8, 10))], {"": 0.25})
    yield Case(
        share, "a process that began anew does not count below zero", [*tens, *chosen("r", 0.2, (50, 0))], {"": 0.3}
    )
    yield Case(
        "mx-rollout / Share of pulls that went to busy sources / A", "the same by policy", tens, {"p": 0.3}, "policy"
    )
    yield Case(
        "mx-rollout / Share of pulls that went to busy sources / B",
        "1 of 4 listed sources is busy",
        [*row("a", 0.9), *row("b", 0.1), *row("c", 0.1), *row("d", 0.69), *row("e", None)],
        {"": 0.25},
    )
    ready = "mx-rollout / Sources ready / A"
    twice = [*row("a", 0.1), *row("b", None), *row("a", 0.1, operator="o2"), *row("b", None, operator="o2")]
    yield Case(ready, "two operators list the same two sources", twice, {"": 2})
    yield Case(
        ready,
        "series per source are switched off",
        [
            ('mx_operator_sources{policy="p", state="listed", instance="o1"}', 7),
            ('mx_operator_sources{policy="p", state="listed", instance="o2"}', 7),
        ],
        {"": 7},
    )
    yield Case(
        ready,
        "no operator: what listings of targets held",
        [
            ('mx_p2p_candidates_sum{instance="t", stage="listed"}', (None, 24)),
            ('mx_p2p_candidates_count{instance="t", stage="listed"}', (None, 3)),
        ],
        {"": 8},
    )
    busy = "mx-rollout / Busy sources / A"
    yield Case(
        busy, "at 0.7 a source is busy, below it is not", [*row("a", 0.7), *row("b", 0.69), *row("c", 0.9)], {"": 2}
    )
    yield Case(busy, "the limit is a choice", [*row("a", 0.7), *row("c", 0.9)], {"": 1}, values=(("busy", "0.8"),))
    yield Case(busy, "none busy is 0, not nothing", row("a", 0.1), {"": 0})
    yield Case(busy, "nobody lists: as measured", [pod("x", "1", 0.9), pod("y", "2", 0.2)], {"": 1})
    yield from pull_times()
    yield from loads()
    yield from pipelines()
    yield from sources()


def pull_times() -> Iterator[Case]:
    """Quantiles and their ratios."""
    pulls = "mx:p2p_transfer_seconds_bucket:pulls5m"
    now: list[Written] = [
        (f'{pulls}{{policy="p", outcome="success", le="1.0"}}', 0),
        (f'{pulls}{{policy="p", outcome="success", le="2.0"}}', 100),
        (f'{pulls}{{policy="p", outcome="success", le="+Inf"}}', 100),
        (f'{pulls}{{policy="p", outcome="fallback", le="+Inf"}}', 50),
    ]
    ever = "mx:p2p_transfer_seconds_bucket:ever"
    before: list[Written] = [
        (f'{ever}{{outcome="success", le="1.0"}}', 1000),
        (f'{ever}{{outcome="success", le="+Inf"}}', 1000),
    ]
    yield Case("mx-rollout / Pull time p99 / A", "successes only", now, {"": 1.99})
    yield Case("mx-rollout / Pull time p99 / B", "1.99 s now, 0.99 s before", [*now, *before], {"": 1.99 / 0.99})
    rate = "mx:time_to_first_token_seconds_bucket:rate5m"
    first: list[Written] = [
        (f'{rate}{{engine="vllm", model_name="m", le="0.25"}}', (10, 0)),
        (f'{rate}{{engine="vllm", model_name="m", le="0.5"}}', 10),
        (f'{rate}{{engine="vllm", model_name="m", le="+Inf"}}', 10),
    ]
    yield Case("mx-rollout / First token p99 / A", "all in the second bucket now", first, {"": 0.4975})
    yield Case("mx-rollout / First token p99 / B", "and in the first before", first, {"": 0.4975 / 0.2475})
    yield Case(
        "mx-rollout / Pulls by policy and result / A",
        "5 pulls in 5 minutes are one a minute",
        [(f'mx_p2p_source_attempts_total{{instance="t{n}", policy="p", result="success"}}', BORN) for n in range(5)],
        {"success": 1},
        "result",
    )
    yield Case(
        "mx-rollout / Pulls per source / A",
        "with the label on: 10 pulls from a, none from b",
        [
            *(
                (f'mx_p2p_source_selections_total{{instance="t{n}", policy="p", source_worker_id="a"}}', BORN)
                for n in range(10)
            ),
            ('mx_p2p_source_selections_total{instance="t", policy="p", source_worker_id="b"}', 3),
            ('mx_p2p_source_selections_total{instance="u", policy="p"}', (0, 9)),
        ],
        {"a": 2, "b": 0},
        "source_worker_id",
    )


def loads() -> Iterator[Case]:
    """Per source, and all of them."""
    per = "mx-rollout / Load per source, as targets see it / A"
    named = [*row("a", 0.5, "1"), *row("b", 0.2, "2"), pod("x", "1", 0.5), pod("y", "2", 0.2)]
    yield Case(per, "pods' names are found by address", named, {"x": 0.5, "y": 0.2}, "k8s_pod_name")
    shared = [*row("a", 0.5, "1"), pod("x", "1", 0.5), pod("y", "1", 0.2)]
    yield Case(per, "an address that two pods share names neither", shared, {"": 0.5}, "k8s_pod_name")
    yield Case(per, "a source without an address is still shown", row("a", 0.5), {"a": 0.5}, "source_worker_id")
    disagree = [*row("a", 0.5, "1"), *row("a", 0.4, "2", operator="o2")]
    yield Case(per, "two operators that disagree: the higher load, once", disagree, {"a": 0.5}, "source_worker_id")
    seen: list[Written] = [
        ('mx_p2p_source_load{instance="t0", scheme="", source_worker_id="a"}', 0.4),
        ('mx_p2p_source_load{instance="t1", scheme="", source_worker_id="a"}', 0.6),
        ('mx_p2p_source_load{instance="t2", scheme=""}', 0.9),
    ]
    targets = "mx-rollout / Load per source, as targets see it / B"
    yield Case(targets, "no operator: what targets saw, with the label on", seen, {"a": 0.6}, "source_worker_id")
    yield Case(targets, "an operator lists: its word alone", [*seen, *row("a", 0.5)], {})
    spread = [*row("a", 0.05), *row("b", 0.1), *row("c", 0.55), *row("d", 1.0)]
    answer = {"0.1": 2.0, "0.5": 2.0, "0.6": 3.0, "0.9": 3.0, "1": 4.0}
    answer |= dict.fromkeys(("0.2", "0.3", "0.4"), 2.0) | dict.fromkeys(("0.7", "0.8"), 3.0)
    yield Case("mx-rollout / Sources by load / A", "counted up to each tenth", spread, answer, "le")


def pipelines() -> Iterator[Case]:
    """Shares, counts and states."""
    states: list[Written] = [
        (f'mx_operator_sources{{instance="{o}", policy="{p}", state="{s}"}}', v)
        for o in ("o1", "o2")
        for p, s, v in (("p", "listed", 6), ("p", "matched", 3), ("q", "listed", 2), ("q", "matched", 2))
    ]
    yield Case("mx-pipeline / Measured / A", "5 of 8, two operators or one", states, {"": 5 / 8})
    yield Case(
        "mx-pipeline / Listed with a load / A",
        "2 of 3 rows",
        [*row("a", 0.1), *row("b", 0.2), *row("c", None)],
        {"": 2 / 3},
    )
    ups: list[Written] = [
        ('mx_exporter_sample_timestamp_seconds{instance="n1"}', 1),
        ('up{instance="n1"}', 1),
        ('up{instance="n2"}', (1, 0)),
        ('up{instance="n3"}', 0),
    ]
    yield Case("mx-pipeline / Exporters / B", "2 of 3 do not answer", ups, {"": 2})
    yield Case("mx-pipeline / Exporters / A", "1 of 3 answers", ups, {"": 1})
    supported: list[Written] = [
        ('mx_operator_load_supported{policy="p"}', 1),
        ('mx_operator_load_supported{policy="q"}', 0),
    ]
    yield Case("mx-pipeline / Loads are kept / A", "one server that does not is enough", supported, {"": 0})
    yield Case(
        "mx-pipeline / Operator / A",
        "nobody writes: 0, not nothing",
        [('mx_operator_sources{policy="p", state="listed"}', 3)],
        {"": 0},
    )


def sources() -> Iterator[Case]:
    """One source among others."""
    here = (("source", "1"),)
    two = [*row("a", 0.0, "1"), *row("b", 1.0, "2")]
    yield Case(
        "mx-source / Pulls vs fair / A", "idle beside a full one: all pulls, twice its share", two, {"": 2}, values=here
    )
    both = [*row("a", 0.7, "1"), pod("x", "1", 0.9), *row("b", 0.1, "2"), pod("y", "2", 0.1)]
    yield Case("mx-source / Off by / A", "measured 0.9, listed 0.7", both, {"": 0.2}, values=here)
    yield Case("mx-source / Unknown parts / A", "all known is 0", [pod("x", "1", 0.9)], {"": 0}, values=here)
    unknown: Written = ('mx_exporter_unknown{instance="n", k8s_pod_ip="1", part="kv", reason="frozen"}', 1)
    yield Case("mx-source / Unknown parts / A", "known only to be unknown", [unknown], {"": 1}, values=here)
    wrote = "mx-source / Operator wrote"
    written: list[Written] = [
        *both,
        ('mx_operator_written_load{source_worker_id="a", mx_source_id="i"}', 0.72),
        ('mx_operator_written_load{source_worker_id="b", mx_source_id="i"}', 0.1),
        ('mx_operator_written_timestamp_seconds{source_worker_id="a", mx_source_id="i"}', END - 12),
        ('mx_operator_written_timestamp_seconds{source_worker_id="b", mx_source_id="i"}', END - 1),
    ]
    yield Case(f"{wrote} / A", "the operator says what it wrote: 0.72 for this one", written, {"": 0.72}, values=here)
    yield Case(f"{wrote} / B", "12 seconds ago", written, {"": 12}, values=here)
    yield Case(f"{wrote} / A", "the operator does not say: nothing, never the listing", both, {}, values=here)
    yield Case(
        "mx-pipeline / Heartbeat interval of the sources / B",
        "configured, beside what is seen",
        [('mx_operator_heartbeat_interval_configured_seconds{policy="p"}', 15)],
        {"p": 15},
        "policy",
    )
    yield Case(
        "mx-source / NICs found by / A",
        "how",
        [('mx_source_load{instance="n", k8s_pod_ip="1", nic_mapping="pci"}', 0.4)],
        {"pci": 1},
        "nic_mapping",
        here,
    )


CASES: Final = list(cases())
KUBERNETES: Final[Sequence[Written]] = (
    ('kube_replicaset_created{namespace="prod", replicaset="llama-7f"}', 1_768_446_000),
    ('kube_replicaset_created{namespace="other", replicaset="web-1"}', 1_768_446_000),
    ('kube_statefulset_metadata_generation{namespace="prod", statefulset="llama"}', (3, 4)),
    ('kube_statefulset_metadata_generation{namespace="other", statefulset="db"}', (1, 2)),
    ('mx_source_load{instance="n", k8s_namespace_name="prod", k8s_pod_name="p", k8s_pod_ip="9"}', 0.1),
    ('ALERTS{alertname="MxLoadStale", alertstate="firing", severity="warning"}', 1),
    ('ALERTS{alertname="Watchdog", alertstate="firing", severity="none"}', 1),
)


def _series(written: Written, job: str) -> openmetrics.Series:
    name, _, inside = written[0].partition("{")
    labels = dict(re.findall(r'(\w+)="([^"]*)"', inside)) | ({"job": job} if name != "ALERTS" else {})
    before, after = written[1] if isinstance(written[1], tuple) else (written[1], written[1])

    def value(at: float) -> float | None:
        return before if at < -120 else after

    return name, labels, fleets.Clock(3 * 3600, 30).samples(value)


@pytest.fixture(scope="module", params=["debian", "3"])
def known(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[History]:
    binary = prometheus.debian() if request.param == "debian" else prometheus.version_3()
    if binary is None:
        pytest.skip(f"no Prometheus {request.param}: run scripts/setup, or scripts/tools for 3")
    series = [_series(written, f"case-{number}") for number, case in enumerate(CASES) for written in case.series]
    series += [_series(written, "cluster") for written in KUBERNETES]
    with history(tmp_path_factory.mktemp("known"), openmetrics.text(series), binary=binary) as server:
        yield server


@pytest.mark.parametrize("number", range(len(CASES)), ids=lambda n: f"{CASES[n].question}: {CASES[n].why}")
def test_the_answer_is_right(known: History, number: int) -> None:
    case = CASES[number]
    question = next(one for one in panels.questions() if one.name == case.question)
    asked = question.with_values(job=f"case-{number}", **dict(case.values))
    answer = {labels.get(case.by, ""): value for labels, value in known.instant(asked)}
    assert answer == pytest.approx(case.answer, abs=1e-4), asked
    assert len(answer) == len(known.instant(asked))


def test_annotations_mark_rollouts_of_this_fleet_only(known: History) -> None:
    expr = {one["name"]: one["expr"] for one in panels.board("mx-rollout")["annotations"]["list"]}
    created = known.instant(expr["Deployment rollouts"])
    assert created == [({"namespace": "prod", "replicaset": "llama-7f"}, 1_768_446_000_000.0)]
    found = known.range(expr["StatefulSet rollouts"], seconds=600, step=30)["result"]
    assert [one["metric"]["statefulset"] for one in found] == ["llama"]
    assert [labels["alertname"] for labels, _ in known.instant(expr["Alerts"])] == ["MxLoadStale"]


def test_alerts_are_counted_and_listed_without_others(known: History) -> None:
    asked = {q.name: q.with_values() for q in panels.questions()}
    assert known.instant(asked["mx-pipeline / Alerts firing / A"])[0][1] == 1
    assert [labels["alertname"] for labels, _ in known.instant(asked["mx-pipeline / Alerts / A"])] == ["MxLoadStale"]
