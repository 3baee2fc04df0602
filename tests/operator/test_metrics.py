"""The operator's own page, to the letter: names and labels are a contract with dashboards and alerts."""

from __future__ import annotations

import dataclasses
import pathlib
import random
import shutil
import subprocess

import pytest

from mx_operator import app, cli
from mx_operator.core.ledgers import Ledger
from mx_operator.core.memory import Memory, RowMemory
from mx_operator.core.model import Identity, Outcome, Result, Row, SourceKey, Write
from mx_operator.core.reports import Check, Counts, PolicyReport
from mx_operator.core.rules import Rules
from mx_operator.loop import reporting
from mx_operator.loop.endpoints import Cycle, EndpointKey
from mx_operator.policies.spec import Prometheus, Server, Signal, SourceLoadPolicy
from mx_operator.telemetry.metrics import Metrics

ENDPOINT = EndpointKey(Server("mx:8001"))
KEY = SourceKey("0123456789abcdef", "worker-1")
GOOD, BAD, UNKNOWN = Check(True, "Good"), Check(False, "Bad"), Check(None, "Unknown")
REPORT = PolicyReport(
    policy="fleet",
    uid="",
    generation=1,
    at=0.0,
    prometheus=GOOD,
    server=BAD,
    load_supported=UNKNOWN,
    data_fresh=GOOD,
    heartbeat=GOOD,
    counts=Counts(listed=3, matched=2, stale=1, clamped=1),
    skips={"stale": 1, "unchanged": 1},
    signal_ages={"load": 1.5},
    heartbeat_interval=30.0,
    clock_skew=None,
    duration=0.03,
    source_heartbeat=15.0,
)


def cycle(*rows: Row, identities: dict[SourceKey, Identity] | None = None, memory: Memory | None = None) -> Cycle:
    write = Write(KEY, 0, 0.5, 1, 0.0, 0.0, "fleet")
    outcomes = (Outcome(write, Result.ACCEPTED, 0, 0), Outcome(write, Result.UNSENT, 0, 0))
    ledger = Ledger(random.Random(0))
    ledger.memory = memory or ledger.memory
    return Cycle((), 0.0, 0.03, None, rows, None, outcomes, {}, identities or {}, ledger, Rules())


ROWS = (
    Row(KEY, 0, 'a "model"\\', 1, 0.25),
    Row(SourceKey("0123456789abcdef", "worker-2"), 1, "m", 1, None),
)

GOLDEN = pathlib.Path(__file__).with_name("golden") / "metrics.txt"


def seen() -> Metrics:
    metrics = Metrics(scheme="east")
    metrics.saw(ENDPOINT, cycle(*ROWS, identities={KEY: Identity("10.0.0.7", 0, "llama-0")}), [REPORT])
    return metrics


def test_the_page_is_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda _name: "VERSION")
    assert seen().page().decode() == GOLDEN.read_text()


def test_promtool_finds_nothing_to_complain_about() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("no promtool: run scripts/setup")
    done = subprocess.run([promtool, "check", "metrics"], input=seen().page(), capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_a_vanished_source_policy_or_endpoint_vanishes() -> None:
    metrics = seen()
    metrics.saw(ENDPOINT, cycle(ROWS[1]), [REPORT])
    assert b"worker-1" not in metrics.page()
    metrics.saw(ENDPOINT, cycle(), [dataclasses.replace(REPORT, policy="other")])
    assert b'policy="fleet"' not in metrics.page()
    metrics.left(ENDPOINT)
    assert b"policy=" not in metrics.page()


def test_two_endpoints_on_one_server_show_each_source_once() -> None:
    metrics = seen()
    other = EndpointKey(Server("mx:8001", token_file="/t"))
    metrics.saw(other, cycle(*ROWS), [dataclasses.replace(REPORT, policy="other")])
    lines = [line for line in metrics.page().decode().splitlines() if line.startswith("mx_p2p")]
    assert len(lines) == len(set(lines)) == 3


def test_the_series_with_process_ids_can_be_switched_off() -> None:
    metrics = Metrics(per_source=False)
    metrics.saw(ENDPOINT, cycle(*ROWS), [REPORT])
    assert b"worker" not in metrics.page()


#: Both sources are remembered, and one that is no longer listed; only the first was ever written.
WROTE = Memory(
    {
        KEY: RowMemory(0, 0.25, 1, 90.0, wrote=0.3, sent_at=95.0),
        ROWS[1].key: RowMemory(1, None, 1, 90.0),
        SourceKey("0123456789abcdef", "worker-gone"): RowMemory(0, 0.7, 1, 50.0, wrote=0.7, sent_at=60.0),
    }
)


def written(per_source: bool = True) -> Metrics:
    """Metrics that also show what was written; the monotonic clock says 100, the wall clock 1,000,100."""
    return Metrics("east", per_source, written=True, clocks=lambda: (100.0, 1_000_100.0))


def test_what_was_written_last_is_shown_of_listed_sources_when_asked_for() -> None:
    metrics = written()
    metrics.saw(ENDPOINT, cycle(*ROWS, memory=WROTE), [REPORT])
    lines = [line for line in metrics.page().decode().splitlines() if "mx_operator_written" in line]
    labels = '{source_worker_id="worker-1",mx_source_id="0123456789abcdef",worker_rank="0"}'
    assert lines == [
        "# HELP mx_operator_written_load The load that this operator wrote last for a READY source.",
        "# TYPE mx_operator_written_load gauge",
        f"mx_operator_written_load{labels} 0.3",
        "# HELP mx_operator_written_timestamp_seconds When it did.",
        "# TYPE mx_operator_written_timestamp_seconds gauge",
        f"mx_operator_written_timestamp_seconds{labels} 1000095.0",
    ]


def test_what_was_written_is_gone_with_its_source() -> None:
    metrics = written(per_source=False)
    metrics.saw(ENDPOINT, cycle(*ROWS, memory=WROTE), [REPORT])
    assert b'mx_operator_written_load{source_worker_id="worker-1"' in metrics.page()
    assert b"mx_p2p" not in metrics.page()
    metrics.saw(ENDPOINT, cycle(ROWS[1], memory=WROTE), [REPORT])
    assert b"worker" not in metrics.page()


def test_of_two_endpoints_on_one_server_the_later_write_is_shown() -> None:
    metrics = written()
    metrics.saw(ENDPOINT, cycle(*ROWS, memory=WROTE), [REPORT])
    later = Memory({KEY: RowMemory(0, 0.25, 1, 90.0, wrote=0.6, sent_at=97.0)})
    other = EndpointKey(Server("mx:8001", token_file="/t"))
    metrics.saw(other, cycle(*ROWS, memory=later), [dataclasses.replace(REPORT, policy="other")])
    loads = [line for line in metrics.page().decode().splitlines() if line.startswith("mx_operator_written_load")]
    assert [line.rsplit(" ", 1)[1] for line in loads] == ["0.6"]


def test_a_policys_own_heartbeat_is_reported_with_and_without_a_cycle() -> None:
    signals = (Signal("load", "mx_source_load"),)
    policy = SourceLoadPolicy("fleet", Server("mx:8001"), Prometheus("http://p"), signals, source_heartbeat=15.0)
    (report,) = reporting.reports(dataclasses.replace(cycle(*ROWS), policies=(policy,), outcomes=()), 0.0)
    assert report.source_heartbeat == 15.0
    assert reporting.unusable(policy, "Unusable", "", 0.0).source_heartbeat == 15.0


def test_what_was_written_is_not_shown_unasked() -> None:
    metrics = Metrics()
    metrics.saw(ENDPOINT, cycle(*ROWS, memory=WROTE), [REPORT])
    assert b"mx_operator_written" not in metrics.page()


def test_one_worker_under_two_identities_has_one_load_series_the_higher() -> None:
    other = Row(SourceKey("fedcba9876543210", "worker-1"), 0, ROWS[0].model_name, 1, 0.75)
    metrics = Metrics()
    metrics.saw(ENDPOINT, cycle(ROWS[0], other), [REPORT])
    loads = [line for line in metrics.page().decode().splitlines() if line.startswith("mx_p2p_source_load")]
    assert [line.rsplit(" ", 1)[1] for line in loads] == ["0.75"]


@pytest.mark.parametrize(("arguments", "asked"), [([], False), (["--written-metrics=on"], True)])
def test_the_door_asks_for_what_was_written(arguments: list[str], asked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[app.Options] = []

    async def run(options: app.Options) -> None:
        seen.append(options)

    monkeypatch.setattr(app, "run", run)
    assert cli.main(["run", "--policy", "policy.yaml", *arguments]) == 0
    assert [options.written for options in seen] == [asked]
