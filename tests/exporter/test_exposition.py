"""Families to pages: OpenTelemetry's names as Prometheus prints them, one label set a metric, nothing kept."""

from __future__ import annotations

import dataclasses
import gzip
import pathlib
import re
import shutil
import subprocess

import hypothesis
import pytest
from hypothesis import strategies as st
from opentelemetry.sdk.resources import Resource
from prometheus_client.openmetrics import parser as openmetrics_parser

from mx_exporter.engines.status import ScrapeStatus
from mx_exporter.exposition import Pages, metrics_data
from mx_exporter.model import Pod, Source, Usage
from mx_exporter.negotiation import FORMS, form
from mx_exporter.snapshot import Present
from mx_exporter.telemetry import Family
from tests.exporter.looking import START, Clock, Looking, values
from tests.exporter.nics.test_golden import same
from tests.exporter.trees import nodes
from tests.parts.tools import tool

POD = Pod("ai", "vllm-0", "uid-0", "10.0.0.7")
OPENMETRICS = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"


def full(tmp_path: pathlib.Path) -> Looking:
    """A node with everything on its page."""
    node = nodes.no_pma(tmp_path)
    other = dataclasses.replace(POD, name='odd"name\\', uid="uid-1", ip="fd00::1")
    looking = Looking(node, Source(POD, nic_devices=("mlx5_0",)), Source(other, nic_devices=("i40iw0",)))
    looking.engines.known = {
        POD: (Usage("vllm", "0", 0.25, None, 0.0), Usage("vllm", "1", None, "frozen", 0.0)),
        other: (Usage("", "", None, "refused", 0.0),),
    }
    looking.engines.scraped = (
        ScrapeStatus(POD, 8000, True, 0.0125, None, 0.0, 3),
        ScrapeStatus(other, 8000, False, 1.0, "refused", 0.0),
    )
    looking.tick()
    node.add("mlx5_0", "counters/port_xmit_data", 6_250_000_000)
    looking.tick()
    return looking


def test_the_whole_page_is_the_golden_one(tmp_path: pathlib.Path) -> None:
    same("full", full(tmp_path).page())


@pytest.mark.parametrize("accept", ["", OPENMETRICS])
def test_every_metric_has_one_label_set(tmp_path: pathlib.Path, accept: str) -> None:
    page = full(tmp_path).page(accept)
    shapes: dict[str, set[tuple[str, ...]]] = {}
    for name, labels in re.findall(r"(?m)^(\w+)(?:{(.*)})? \S+$", page):
        shapes.setdefault(name, set()).add(tuple(sorted(re.findall(r'(\w+)="', labels))))
    assert len(shapes) >= 15
    assert {name: shape for name, shape in shapes.items() if len(shape) > 1} == {}


def test_openmetrics_is_given_to_whom_asks_for_it(tmp_path: pathlib.Path) -> None:
    looking = full(tmp_path)
    snapshot = looking.present.get()
    assert snapshot is not None
    body, kind = looking.pages.page(snapshot, OPENMETRICS)
    assert kind.startswith("application/openmetrics-text")
    assert body.endswith(b"# EOF\n")
    plain, kind = looking.pages.page(snapshot, "*/*")
    assert kind.startswith("text/plain; version=0.0.4")
    assert gzip.decompress(looking.pages.page(snapshot, "*/*", compressed=True)[0]) == plain


TEXT_TYPE, OPENMETRICS_TYPE = "text/plain", "application/openmetrics-text"


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("", TEXT_TYPE),
        ("*/*", TEXT_TYPE),
        ("text/html, */*;q=0.1", TEXT_TYPE),
        ("application/openmetrics-text", OPENMETRICS_TYPE),
        ("APPLICATION/OpenMetrics-Text ; Version = 1.0.0", OPENMETRICS_TYPE),
        ('application/openmetrics-text;version="1.0.0"', OPENMETRICS_TYPE),
        # Prometheus 2 and 3.
        (("application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,"
         "text/plain;version=0.0.4;q=0.3,*/*;q=0.2"), OPENMETRICS_TYPE),
        (("application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
         "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,"
         "text/plain;version=0.0.4;q=0.3,*/*;q=0.2"), OPENMETRICS_TYPE),
        # One who prefers the other one, or does not take it at all.
        ("text/plain;version=0.0.4,application/openmetrics-text;version=1.0.0;q=0.8", TEXT_TYPE),
        ("application/openmetrics-text;version=1.0.0;q=0", TEXT_TYPE),
        # Versions that we do not speak, or that are none.
        ("application/openmetrics-text;version=0.0.1", TEXT_TYPE),
        ("application/openmetrics-text;version=2.0.0", TEXT_TYPE),
        ("application/openmetrics-text;version=abc", TEXT_TYPE),
        ("application/openmetrics-text;q=abc", TEXT_TYPE),
        ("text/plain;version=9999999999", TEXT_TYPE),
    ],
)  # fmt: skip
def test_each_client_gets_the_form_it_prefers(tmp_path: pathlib.Path, accept: str, kind: str) -> None:
    looking = full(tmp_path)
    snapshot = looking.present.get()
    assert snapshot is not None
    body, given = looking.pages.page(snapshot, accept)
    assert given.split(";")[0] == kind
    assert body.endswith(b"# EOF\n") == (kind == OPENMETRICS_TYPE)


@hypothesis.given(
    st.text() | st.lists(st.sampled_from([*"=,;/* q0.91", "version", TEXT_TYPE, OPENMETRICS_TYPE])).map("".join)
)
def test_no_client_makes_a_form_of_its_own(accept: str) -> None:
    """What a client can make us render and keep is bounded: two forms."""
    assert form(accept) in FORMS
    assert len(FORMS) == 2


def test_openmetrics_is_what_its_own_parser_takes(tmp_path: pathlib.Path) -> None:
    page = full(tmp_path).page(OPENMETRICS)
    names = {family.name for family in openmetrics_parser.text_string_to_metric_families(page)}  # type: ignore[no-untyped-call]
    assert {"hw_network_io_bytes", "mx_exporter_target_bad_lines", "mx_source_load"} <= names


def test_a_snapshot_is_rendered_once(tmp_path: pathlib.Path) -> None:
    looking = full(tmp_path)
    snapshot = looking.present.get()
    assert snapshot is not None
    first = looking.pages.page(snapshot)[0]
    assert looking.pages.page(snapshot)[0] is first
    assert looking.pages.page(looking.tick())[0] is not first
    assert len(looking.pages._cache) == 1  # what nobody can ask for any more is not kept


def test_promtool_has_nothing_to_say(tmp_path: pathlib.Path) -> None:
    programs = [path for path in (tool("promtool"), shutil.which("promtool")) if path]
    if not programs:
        pytest.skip("no promtool: apt-get install prometheus, or scripts/tools")
    looking = full(tmp_path)
    snapshot = looking.present.get()
    assert snapshot is not None
    page = looking.pages.page(snapshot)[0]
    for program in programs:
        done = subprocess.run([program, "check", "metrics"], input=page, capture_output=True, check=False)
        assert (done.returncode, done.stdout + done.stderr) == (0, b"")


def test_series_of_a_gone_pod_are_gone_on_the_next_page(tmp_path: pathlib.Path) -> None:
    """dcgm-exporter#140."""
    looking = full(tmp_path)
    assert "vllm-0" in looking.page()
    looking.discovery.known = ()
    looking.tick()
    assert "vllm-0" not in looking.page()


def test_no_series_is_there_twice(tmp_path: pathlib.Path) -> None:
    """A pod with two engines that call themselves the same: a scrape with both would be refused."""
    looking = full(tmp_path)
    twice = tuple(Usage("vllm", "0", value, None, 0.0) for value in (0.3, 0.7, 0.5))
    looking.engines.known = {POD: twice}
    looking.engines.scraped = tuple(ScrapeStatus(POD, 8000, up, 0.1, None, 0.0) for up in (False, True))
    looking.tick()
    page = looking.page()
    assert list(values(page, "mx_kv_cache_usage").values()) == [0.7]
    assert list(values(page, "mx_exporter_target_up").values()) == [1.0]
    series = [line.rsplit(" ", 1)[0] for line in page.splitlines() if not line.startswith("#")]
    assert len(series) == len(set(series))


def test_pods_without_end_leave_nothing_behind_and_never_overflow(tmp_path: pathlib.Path) -> None:
    """The SDK's own aggregation would fold every label set after the 2000th into one."""
    looking = Looking(nodes.nothing(tmp_path))
    for i in range(5000 // 100):
        pods = [dataclasses.replace(POD, name=f"p{i}-{j}") for j in range(100)]
        looking.discovery.known = tuple(Source(pod) for pod in pods)
        looking.engines.known = {pod: (Usage("vllm", "0", 0.5, None, 0.0),) for pod in pods}
        looking.tick()
        page = looking.page()
    assert len(values(page, "mx_source_load")) == 100
    assert "overflow" not in page


def test_what_is_too_old_says_nothing_about_now(tmp_path: pathlib.Path) -> None:
    looking = full(tmp_path)
    looking.clock.now += 5.1
    page = looking.page()
    for name in ("hw_network_bandwidth_utilization", "hw_network_up", "mx_source_load", "mx_kv_cache_usage"):
        assert values(page, name) == {}
    assert all('reason="sampler_stalled"' in labels for labels in values(page, "mx_exporter_unknown"))
    assert values(page, "mx_exporter_sample_timestamp_seconds")[""] == START + looking.clock.now - 5.1


def test_the_present_is_the_same_object_until_something_changes() -> None:
    clock = Clock()
    present = Present(5.0, clock)
    assert (present.get(), present.age()) == (None, None)


def test_a_counter_beyond_a_signed_integer_is_still_sent() -> None:
    """Words times four can pass 2^63, which OTLP's integers cannot; the whole push would be lost."""
    from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics

    family = Family("hw.network.io", "", "By", (({"device": "a"}, 2**66), ({"device": "b"}, 7)), counter=True)
    data = metrics_data([family], Resource({}), START, START + 1)
    points = encode_metrics(data).resource_metrics[0].scope_metrics[0].metrics[0].sum.data_points
    assert [(point.as_double, point.as_int) for point in points] == [(float(2**66), 0), (0.0, 7)]


def test_a_page_made_while_another_is_made_is_whole(tmp_path: pathlib.Path) -> None:
    import concurrent.futures

    looking = full(tmp_path)
    snapshot = looking.present.get()
    assert snapshot is not None
    pages = Pages(Resource({}), START)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        bodies = set(pool.map(lambda _: pages.page(snapshot)[0], range(32)))
    assert len(bodies) == 1
