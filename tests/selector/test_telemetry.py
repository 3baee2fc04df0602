"""Values of several processes as one page, the folder they meet in, the endpoint, OpenTelemetry, forks."""

from __future__ import annotations

import json
import os
import pathlib
import socket
import stat
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import CollectorRegistry, generate_latest

from mx_lab.processes import free_port, wait_until
from mx_selector import settings, telemetry
from mx_selector.telemetry import events, families, sinks, values
from mx_selector.telemetry.families import Update
from mx_selector.telemetry.recorder import Recorder
from mx_selector.telemetry.spool import Spool
from mx_selector.telemetry.values import Values

ROOT = pathlib.Path(__file__).parents[2]
KINDS = values.kinds_of(families.ALL)
COUNT = Update(families.LIST_SOURCES, ("headroom", "", "ok"))


def seconds(value: float) -> Update:
    return Update(families.TRANSFER_SECONDS, ("headroom", "", "success"), value)


def load_of(worker_id: str, load: float) -> Update:
    return Update(families.SOURCE_LOADS, ("", worker_id), load)


UPDATE = st.one_of(st.just(COUNT), st.floats(0, 400).map(seconds), st.floats(0, 1).map(lambda x: load_of("w", x)))
UPDATES = st.lists(UPDATE, max_size=8)


def plain(snapshot: values.Snapshot) -> dict[Any, Any]:
    """Without float dust: sums of the same numbers in another order."""
    return {k: [v[0], pytest.approx(v[1])] if isinstance(v, list) else v for k, v in snapshot.items()}


@given(st.lists(UPDATES, max_size=4))
def test_merged_processes_are_one_process_that_did_it_all(processes: list[list[Update]]) -> None:
    now = [0.0]
    everything, snapshots = Values(lambda: now[0]), []
    for updates in processes:
        now[0] += 1.0
        one = Values(lambda: now[0])
        one.record(updates)
        everything.record(updates)
        snapshots.append(one.snapshot())
    merged = values.merge(snapshots, KINDS)
    assert plain(merged) == plain(everything.snapshot())
    assert plain(values.merge([values.merge(snapshots[:2], KINDS), *snapshots[2:]], KINDS)) == plain(merged)


@given(UPDATES)
def test_a_snapshot_survives_its_file(updates: list[Update]) -> None:
    recorded = Values()
    recorded.record(updates)
    snapshot = recorded.snapshot()
    assert values.load(json.loads(json.dumps(values.dump(snapshot)))) == {
        k: list(v) if isinstance(v, tuple) else v for k, v in snapshot.items()
    }


def test_a_snapshot_is_left_alone_by_later_records() -> None:
    recorded = Values()
    recorded.record([seconds(1.0)])
    before = json.dumps(values.dump(recorded.snapshot()))
    held = recorded.snapshot()
    recorded.record([seconds(1.0)])
    assert json.dumps(values.dump(held)) == before


def test_gauges_are_taken_back_with_the_next_event_and_end_after_five_minutes() -> None:
    now = [100.0]
    recorded = Values(lambda: now[0])
    recorded.record([load_of("a", 0.1), load_of("b", 0.2), Update(families.BUILD_INFO, ("selector", "1", ""))])
    recorded.record([Update(families.SOURCE_LOADS, (), None), load_of("c", 0.3)])
    loads = {k[2][-1]: v[0] for k, v in recorded.snapshot().items() if k[0] == "mx_p2p_source_load"}
    assert loads == {"c": 0.3}
    later = values.current(recorded.snapshot(), KINDS, 100.0 + values.GAUGE_SECONDS + 1)
    assert {k[0] for k in later} == {"mx_build_info"}


def test_series_of_families_we_do_not_know_are_left_out() -> None:
    assert values.merge([{("other", (), ()): 1.0}], KINDS) == {}


def test_another_versions_buckets_do_not_spoil_ours() -> None:
    key = ("mx_p2p_transfer_seconds", (), ())
    assert values.merge([{key: [[1, 2], 3.0]}, {key: [[1], 1.0]}], KINDS) == {key: [[1, 2], 3.0]}


@pytest.fixture
def page(tmp_path: pathlib.Path) -> Iterator[sinks.PageSink]:
    sink = sinks.PageSink({"MX_METRICS_PORT": "0", "MX_METRICS_DIR": str(tmp_path / "shared")})
    wait_until(lambda: sink._spool is not None, 10, "a place among the ranks")
    yield sink
    sink.close()


def text(sink: sinks.PageSink) -> str:
    from mx_selector.telemetry.pages import Collector

    registry = CollectorRegistry()
    registry.register(Collector(families.ALL, sink.read))
    return generate_latest(registry).decode()


PAGE = f"""\
# HELP mx_p2p_list_sources_total {families.LIST_SOURCES.help}
# TYPE mx_p2p_list_sources_total counter
mx_p2p_list_sources_total{{policy="headroom",result="ok",scheme=""}} 2.0
# HELP mx_p2p_transfer_seconds {families.TRANSFER_SECONDS.help}
# TYPE mx_p2p_transfer_seconds histogram
mx_p2p_transfer_seconds_bucket{{le="0.5",outcome="success",policy="headroom",scheme=""}} 1.0
mx_p2p_transfer_seconds_bucket{{le="1.0",outcome="success",policy="headroom",scheme=""}} 2.0
mx_p2p_transfer_seconds_bucket{{le="2.0",outcome="success",policy="headroom",scheme=""}} 2.0
mx_p2p_transfer_seconds_bucket{{le="5.0",outcome="success",policy="headroom",scheme=""}} 2.0
mx_p2p_transfer_seconds_bucket{{le="10.0",outcome="success",policy="headroom",scheme=""}} 2.0
mx_p2p_transfer_seconds_bucket{{le="30.0",outcome="success",policy="headroom",scheme=""}} 2.0
mx_p2p_transfer_seconds_bucket{{le="60.0",outcome="success",policy="headroom",scheme=""}} 2.0
mx_p2p_transfer_seconds_bucket{{le="120.0",outcome="success",policy="headroom",scheme=""}} 2.0
mx_p2p_transfer_seconds_bucket{{le="300.0",outcome="success",policy="headroom",scheme=""}} 2.0
mx_p2p_transfer_seconds_bucket{{le="+Inf",outcome="success",policy="headroom",scheme=""}} 3.0
mx_p2p_transfer_seconds_count{{outcome="success",policy="headroom",scheme=""}} 3.0
mx_p2p_transfer_seconds_sum{{outcome="success",policy="headroom",scheme=""}} 302.5
# HELP mx_p2p_source_load Load in [0, 1] of the source chosen last, as it was listed.
# TYPE mx_p2p_source_load gauge
mx_p2p_source_load{{scheme="",source_worker_id="w\\"1"}} 0.25
"""


def test_the_page_to_the_letter(page: sinks.PageSink) -> None:
    page.record([COUNT, COUNT, seconds(0.5), seconds(1.0), seconds(301.0), load_of('w"1', 0.25)])
    assert text(page) == PAGE


@pytest.mark.released
def test_families_labels_and_buckets_are_the_released_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.parts import released

    monkeypatch.setenv("MX_METRICS_ENABLED", "1")
    theirs = released.module("metrics").MetricsCollector(CollectorRegistry())
    theirs._build_families()
    by_name = {getattr(m, "_name", ""): m for m in vars(theirs).values() if hasattr(m, "_labelnames")}
    shared = [f for f in families.ALL if f.name in by_name]
    assert {f.name for f in shared} == {f.name for f in families.ALL if f.name.startswith(("mx_p2p_", "mx_build"))}
    for family in shared:
        metric = by_name[family.name]
        assert metric._labelnames == family.labels, family.name
        assert metric._type == family.kind.value
        if family.buckets:
            assert tuple(metric._upper_bounds[:-1]) == family.buckets, family.name


def spawn(folder: pathlib.Path, script: str) -> subprocess.Popen[str]:
    """Another process in the same folder; it says one line when it has recorded, and ends with its input."""
    code = (
        "import pathlib, sys\n"
        "from tests.selector.test_telemetry import *\n"
        f"spool, values_ = Spool(pathlib.Path({str(folder)!r}), KINDS), Values()\n"
        f"{script}\nspool.write(values_.snapshot())\nprint('recorded', flush=True)\nsys.stdin.read()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "recorded\n"
    return process


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def total(spool: Spool, name: str) -> float:
    merged = values.merge(spool.others(), KINDS)
    return float(sum(v for k, v in merged.items() if k[0] == name and not isinstance(v, list)))


def test_the_folder_keeps_what_the_dead_counted_and_drops_what_described_them(tmp_path: pathlib.Path) -> None:
    spool = Spool(tmp_path / "f", KINDS)
    other = spawn(tmp_path / "f", "values_.record([COUNT, COUNT, load_of('w', 0.5)])")
    assert total(spool, "mx_p2p_list_sources") == 2
    assert any(k[0] == "mx_p2p_source_load" for s in spool.others() for k in s)
    end(other)
    assert total(spool, "mx_p2p_list_sources") == 2
    assert not any(k[0] == "mx_p2p_source_load" for s in spool.others() for k in s)
    third = spawn(tmp_path / "f", "values_.record([COUNT])")
    assert total(spool, "mx_p2p_list_sources") == 3, "folding the dead counts nothing twice"
    end(third)
    spool.close()


def test_a_crash_while_folding_counts_nothing_twice(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "f"
    spool = Spool(folder, KINDS)
    other = spawn(folder, "values_.record([COUNT])")
    name = next(p.stem for p in folder.glob("rank-*.json") if str(other.pid) in p.stem)
    end(other)
    content = json.loads((folder / f"{name}.json").read_text())
    (folder / "gone.json").write_text(json.dumps({**content, "absorbed": [name]}))  # written, files not yet deleted
    assert total(spool, "mx_p2p_list_sources") == 1
    last = spawn(folder, "pass")
    assert total(spool, "mx_p2p_list_sources") == 1
    end(last)
    spool.close()


@pytest.mark.parametrize("rubbish", ["", "{", "[]", '{"values": [[1]]}', '{"values": 3}', "\x00\xff"])
def test_a_spoilt_file_costs_its_own_values_only(rubbish: str, tmp_path: pathlib.Path) -> None:
    spool = Spool(tmp_path / "f", KINDS)
    (tmp_path / "f" / "rank-1-dead.json").write_bytes(rubbish.encode("latin-1"))
    (tmp_path / "f" / "rank-1-dead.lock").touch()
    assert values.merge(spool.others(), KINDS) == {}
    spool.close()


def test_the_folder_is_private_and_a_foreign_one_is_refused(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Spool(tmp_path / "ours", KINDS).close()
    assert stat.S_IMODE((tmp_path / "ours").stat().st_mode) == 0o700
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(PermissionError, match="MX_METRICS_DIR"):
        Spool(tmp_path / "ours", KINDS)
    Spool(tmp_path / "ours", KINDS, shared=True).close()
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "ours")
    with pytest.raises(PermissionError):
        Spool(link, KINDS)


def test_without_a_folder_the_process_serves_itself(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "_said", set())
    (tmp_path / "file").touch()
    sink = sinks.PageSink({"MX_METRICS_PORT": "0", "MX_METRICS_DIR": str(tmp_path / "file" / "below")})
    sink.record([COUNT])
    assert 'result="ok"' in text(sink)
    wait_until(lambda: "only of this process" in caplog.text, 10, "the line")
    sink.close()


def test_a_full_disk_is_said_once_and_made_good_later(
    page: sinks.PageSink, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    monkeypatch.setattr(settings, "_said", set())
    with monkeypatch.context() as patch:
        patch.setattr(Spool, "write", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        page.record([COUNT])
        page.record([COUNT])
    assert [r.message for r in caplog.records] == [
        "metrics: cannot be shared with the other ranks for now: [Errno 28] No space left on device"
    ]
    page.record([COUNT])
    (mine,) = (tmp_path / "shared").glob("rank-*.json")
    assert json.loads(mine.read_text())["values"][0][3] == 3.0


def scrape(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        return str(answer.read().decode())


def served(port: int) -> bool:
    try:
        return "mx_" in scrape(port)
    except OSError:
        return False


def test_a_port_of_something_else_is_named_once_and_taken_when_it_is_free(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "_said", set())
    other = socket.create_server(("127.0.0.1", 0))
    port = other.getsockname()[1]
    environ = {"MX_METRICS_PORT": str(port), "MX_METRICS_ADDRESS": "127.0.0.1", "MX_METRICS_BIND_RETRY_SECS": "0.1"}
    sink = sinks.PageSink({**environ, "MX_METRICS_DIR": str(tmp_path)})
    sink.record([COUNT])
    wait_until(lambda: bool(caplog.records), 5, "the port to be tried")
    time.sleep(0.3)
    other.close()
    wait_until(lambda: served(port), 5, "the port to be taken")
    assert len([r for r in caplog.records if "cannot be served (Address already in use)" in r.message]) == 1
    sink.close()
    assert not served(port)


def test_many_threads_record_while_others_scrape(page: sinks.PageSink) -> None:
    def work() -> None:
        for _ in range(50):
            page.record([COUNT, seconds(0.1)])
            page.read()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 'mx_p2p_list_sources_total{policy="headroom",result="ok",scheme=""} 400.0' in text(page)


FORK = r"""
import os, sys, time
from mx_selector import Target, select_from, telemetry
from mx_wire import SourceIdentity, SourceInstanceRef
row = SourceInstanceRef(mx_source_id="s", worker_id="w", source_load=0.5)
work = lambda: select_from([row], SourceIdentity(), Target("m", "t"), policy="headroom")
work()
telemetry.recorder()  # serves: the parent has the turn
turn = os.path.join(os.environ["MX_METRICS_DIR"], "turn")
for _ in range(3_000):
    if os.path.exists(turn) and os.path.getsize(turn):
        break
    time.sleep(0.01)
child = os.fork()
work()
os.write(1, b"child\n" if child == 0 else b"parent\n")
time.sleep(30)
"""


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # Python 3.12 on forks beside threads
def test_a_fork_in_the_middle_of_a_bind_waits_for_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the child would hold a socket that nobody knows of."""
    from mx_selector.telemetry import endpoint, pages

    entered, forked = threading.Event(), threading.Event()

    def slow_start(*_: object) -> tuple[Any, None]:
        entered.set()
        assert not forked.wait(0.3), "the fork did not wait"
        return SimpleNamespace(socket=SimpleNamespace(close=lambda: None), shutdown=lambda: None), None

    monkeypatch.setattr(endpoint, "start_http_server", slow_start)
    serving = endpoint.Endpoint(pages.Collector((), dict), "127.0.0.1", 1, 1.0)
    thread = threading.Thread(target=serving.serve, args=(None,))
    thread.start()
    entered.wait(5)
    child = os.fork()
    if child == 0:
        os._exit(0 if serving._server is not None else 1)
    forked.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, "the child knows the socket it has to close"


def test_a_forked_child_counts_for_itself_and_takes_over_the_port(tmp_path: pathlib.Path) -> None:
    """The child must not keep the parent's socket or lock, or the page would hang for ever when the parent is gone."""
    port = free_port()
    environ = {
        "MX_METRICS_ENABLED": "1",
        "MX_METRICS_PORT": str(port),
        "MX_METRICS_ADDRESS": "127.0.0.1",
        "MX_METRICS_DIR": str(tmp_path),
        "MX_METRICS_BIND_RETRY_SECS": "0.1",
    }
    parent = subprocess.Popen(
        [sys.executable, "-c", FORK],
        env=os.environ | environ,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # so that both can be ended together
    )
    assert parent.stdout is not None
    wanted = 'mx_p2p_list_sources_total{policy="headroom",result="ok",scheme=""} 3.0'
    try:
        assert {parent.stdout.readline(), parent.stdout.readline()} == {"child\n", "parent\n"}
        wait_until(lambda: served(port) and wanted in scrape(port), 30, "three selections")
        assert int((tmp_path / "turn").read_text()) == parent.pid
        parent.kill()
        wait_until(lambda: served(port) and wanted in scrape(port), 30, "the child to serve all three")
    finally:
        os.killpg(parent.pid, 9)
        parent.wait()
        parent.stdout.close()


def test_opentelemetry_and_our_page_name_the_same_series(page: sinks.PageSink, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through the SDK's Prometheus exporter the very same series come out."""
    registry = CollectorRegistry()
    reader = PrometheusMetricReader(disable_target_info=True, registry=registry)
    provider = MeterProvider([reader])
    sink = sinks.OpenTelemetrySink()
    sink._meter = provider.get_meter("mx_selector")
    updates = [COUNT, seconds(1.5), load_of("w", 0.25), Update(families.CANDIDATES, ("p", "", "listed"), 3)]
    updates += [Update(families.CHOSEN_LOAD_AGE, ("p", ""), 4.0), Update(families.CHOSEN_LOAD, ("p", ""), 0.4)]
    for target in (sink, page):
        target.record(updates)

    def samples(page: str) -> set[str]:
        lines = (line for line in page.splitlines() if not line.startswith("#") and "target_info" not in line)
        return {line.rpartition(" ")[0].replace(',otel_scope_name="mx_selector"', "") for line in lines}

    through_otel = {strip_scope(line) for line in samples(generate_latest(registry).decode())}
    assert through_otel == samples(text(page))
    sink.record([Update(families.SOURCE_LOADS, (), None)])
    assert "mx_p2p_source_load{" not in generate_latest(registry).decode()
    provider.shutdown()


def strip_scope(sample: str) -> str:
    name, _, rest = sample.partition("{")
    labels = [part for part in rest.rstrip("}").split(",") if part and not part.startswith("otel_scope_")]
    return f"{name}{{{','.join(labels)}}}" if labels else name


def test_opentelemetry_is_not_imported_for_the_selectors_sake() -> None:
    code = (
        "import sys\nfrom mx_selector import Target, select_from\n"
        "select_from([], None, Target('m', 't'))\n"
        "assert not [m for m in sys.modules if m.startswith(('opentelemetry', 'prometheus', 'rich'))]\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)


def test_with_the_api_alone_nothing_happens_and_nothing_breaks() -> None:
    code = (
        "import sys\nimport opentelemetry.metrics\n"
        "assert 'opentelemetry.sdk' not in sys.modules\n"
        "from mx_selector import Target, select_from, telemetry\n"
        "from mx_wire import SourceIdentity, SourceInstanceRef\n"
        "row = SourceInstanceRef(mx_source_id='s', worker_id='w', source_load=0.5)\n"
        "s = select_from([row], SourceIdentity(), Target('m', 't'))\n"
        "with s.attempt(s[0]): pass\n"
        "(sink,) = telemetry.recorder()._sinks\n"
        "assert len(sink._instruments) >= 7, sink._instruments\n"
        "assert not [m for m in sys.modules if m.startswith('opentelemetry.sdk')]\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)


def test_a_missing_library_is_said_with_the_fix() -> None:
    code = (
        "import sys\nsys.modules['prometheus_client'] = None\n"
        "from mx_selector import telemetry\n"
        "made = telemetry._make({'MX_METRICS_ENABLED': 'yes', 'MX_METRICS_PORT': '0'})\n"
        "assert [type(s).__name__ for s in made._sinks] == ['OpenTelemetrySink']\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, timeout=30, capture_output=True, text=True)
    assert done.stderr == "metrics: prometheus_client is missing: pip install 'mx-source-load[selector]'\n"


def test_off_means_off(monkeypatch: pytest.MonkeyPatch) -> None:
    made = telemetry._make({})
    assert [type(s).__name__ for s in made._sinks] == ["OpenTelemetrySink"]


def test_riding_along_feeds_the_registry_of_the_host() -> None:
    registry = CollectorRegistry()
    sink = sinks.RegistrySink(registry)
    recorder = Recorder([sink], events.Labels("blue"))
    recorder.chosen("headroom", [SimpleNamespace(source_load=0.4, updated_at=0)])
    recorder.fell_back("headroom", "ValueError")
    recorder.listed("headroom", "ok")  # the host's own family: not ours to touch
    page = generate_latest(registry).decode()
    assert 'mx_selector_chosen_load_bucket{le="0.4",policy="headroom",scheme="blue"} 1.0' in page
    assert 'mx_selector_fallbacks_total{policy="headroom",reason="ValueError",scheme="blue"} 1.0' in page
    assert "mx_p2p_" not in page


BAD_PORTS = ("", "junk", "-1", "70000", "1.5", "nan")


@pytest.mark.parametrize(
    ("given", "port"), [(None, 9402), ("0", 0), ("9000", 9000), *((bad, 9402) for bad in BAD_PORTS)]
)
def test_ports_are_ports(given: str | None, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "_said", set())
    assert settings.metrics_port({} if given is None else {"MX_METRICS_PORT": given}) == port
