"""`mx-select` against a real embedded server: its tables, its JSON, its one clear line for everything that is wrong."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from mx_lab.processes import free_port, wait_until
from mx_selector.cli import main
from mx_wire import (
    ListSourcesRequest,
    P2pServiceStub,
    PublishMetadataRequest,
    SourceIdentity,
    SourceStatus,
    UpdateStatusRequest,
    WorkerMetadata,
    channel,
    mx_source_id,
)
from tests.selector.rows import row
from tests.selector.servers import serving

READY = SourceStatus.SOURCE_STATUS_READY
LOADS = {"hot": 0.95, "calm": 0.1, "idle": 0.0, "untold": None}
LLAMA = SourceIdentity(model_name="llama", dtype="bfloat16")
SOURCES: list[tuple[SourceIdentity, str, float | None, int]] = [
    *((LLAMA, worker_id, load, 0) for worker_id, load in LOADS.items()),
    (SourceIdentity(model_name="llama", dtype="float8"), "fp8", 0.2, 0),
    (SourceIdentity(model_name="qwen"), "q0", 0.3, 0),
    (SourceIdentity(model_name="qwen"), "q1", 0.3, 1),
]


def publish(stub: P2pServiceStub, identity: SourceIdentity, worker_id: str, load: float | None, rank: int) -> None:
    worker = WorkerMetadata(worker_rank=rank)
    done = stub.PublishMetadata(
        PublishMetadataRequest(identity=identity, worker=worker, worker_id=worker_id), timeout=5
    )
    update = UpdateStatusRequest(mx_source_id=done.mx_source_id, worker_id=worker_id, worker_rank=rank, status=READY)
    if load is not None:
        update.source_load = load
    assert stub.UpdateStatus(update, timeout=5).success


def answers(stub: P2pServiceStub) -> bool:
    try:
        stub.ListSources(ListSourcesRequest(), timeout=1)
    except grpc.RpcError:  # not up yet
        return False
    return True


@contextlib.contextmanager
def embedded_server() -> Iterator[str]:
    """The project's own server, with sources published through it."""
    address = f"127.0.0.1:{free_port()}"
    program = pathlib.Path(sys.executable).parent / "mx-server"
    metrics = f"127.0.0.1:{free_port()}"
    process = subprocess.Popen([program, "--listen", address, "--metrics-listen", metrics, "--backend", "memory"])
    try:
        with channel(address) as connection:
            stub = P2pServiceStub(connection)
            wait_until(lambda: answers(stub), 20, "the server")
            for identity, worker_id, load, rank in SOURCES:
                publish(stub, identity, worker_id, load, rank)
        yield address
    finally:
        process.terminate()
        process.wait(20)


@contextlib.contextmanager
def listing_server() -> Iterator[str]:
    """The same rows from a server that only lists, where the embedded one is not installed (a target's environment)."""
    listed = [
        row(worker_id, load, mx_source_id=mx_source_id(identity), model_name=identity.model_name, worker_rank=rank)
        for identity, worker_id, load, rank in SOURCES
    ]
    with serving(listed, by_identity=True) as (_, address):
        yield address


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with embedded_server() if importlib.util.find_spec("grpc_health") else listing_server() as address:
        yield address


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("MX_", "MODEL_")):
            monkeypatch.delenv(name)


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    status = main(list(argv))
    out, err = capsys.readouterr()
    return status, out, err


def objects(out: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.splitlines()]


def test_rank_shows_the_order_and_why(server: str, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ("rank", "--server", server, "--model", "llama", "--policy", "headroom", "--worker-id", "t")
    status, out, err = run(capsys, *argv)
    assert (status, err) == (0, "")
    for column in ("rank", "source", "load", "age", "unit hash", "weight", "score"):
        assert column in out
    assert "0.95" in out
    assert "unknown" in out
    assert " won: " in out
    assert out.count("target 't' by headroom") == 2, "one table per identity: a target never sees the other"


def test_rank_as_json_is_what_a_target_would_do(server: str, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ("rank", "--server", server, "--model", "llama", "--policy", "load_aware", "--json", "--worker-id", "t")
    _, out, _ = run(capsys, *argv)
    shown = next(o for o in objects(out) if len(o["sources"]) == 4)
    from mx_selector import Target, select_sources

    with channel(server) as connection:
        identity = SourceIdentity(model_name="llama", dtype="bfloat16")
        selection = select_sources(
            P2pServiceStub(connection), identity, Target("llama", "t"), policy="load_aware", limit=None
        )
    assert [s["worker_id"] for s in shown["sources"]] == [s.worker_id for s in selection]
    assert {s["worker_id"]: s["load"] for s in shown["sources"]} == pytest.approx(LOADS, abs=1e-6)
    assert shown["why"].endswith(".")


def test_several_policies_ranks_and_a_cut(server: str, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ("rank", "--server", server, "--model", "qwen", "--policy", "headroom", "--policy", "random", "--json")
    _, out, _ = run(capsys, *argv, "--top", "1")
    seen = [(o["worker_rank"], o["policy"], len(o["sources"])) for o in objects(out)]
    assert seen == [(0, "headroom", 1), (0, "random", 1), (1, "headroom", 1), (1, "random", 1)]
    _, out, _ = run(capsys, *argv, "--rank", "1")
    assert {o["worker_rank"] for o in objects(out)} == {1}
    source = objects(out)[0]["mx_source_id"]
    _, out, _ = run(capsys, "rank", "--server", server, "--json", "--source", source)
    assert {o["model"] for o in objects(out)} == {"qwen"}
    _, out, _ = run(capsys, "rank", "--server", server, "--json")
    assert {o["model"] for o in objects(out)} == {"qwen", "llama"}


def test_forecast_compares_the_policies(server: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "forecast", "--server", server, "--model", "llama", "--targets", "24")
    assert status == 0
    for policy in ("random", "rendezvous_hash", "load_aware", "headroom"):
        assert policy in out
    assert "on busy sources (load >= 0.7)" in out
    assert "deepest pile on one source" in out
    _, out, _ = run(capsys, "forecast", "--server", server, "--model", "llama", "--targets", "24", "--json")
    shown = next(o for o in objects(out) if len(o["policies"][0]["pulls"]) == 4)
    for policy in shown["policies"]:
        assert sum(policy["pulls"].values()) == pytest.approx(24)
    by_name = {p["policy"]: p["pulls"] for p in shown["policies"]}
    assert by_name["headroom"]["hot"] < 0.5 < by_name["rendezvous_hash"]["hot"]


def test_the_environment_stands_in_for_arguments(
    server: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MX_SERVER_ADDRESS", server)
    monkeypatch.setenv("MODEL_NAME", "llama")
    monkeypatch.setenv("MX_P2P_SOURCE_SELECTOR", "load_aware")
    _, out, _ = run(capsys, "rank", "--json")
    assert {(o["model"], o["policy"]) for o in objects(out)} == {("llama", "load_aware")}


def test_watch_repeats_until_interrupted(server: str) -> None:
    program = pathlib.Path(sys.executable).parent / "mx-select"
    argv = [str(program), "rank", "--server", server, "--model", "qwen", "--json", "--rank", "0", "--watch", "0.2"]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    seen = [json.loads(process.stdout.readline())["model"] for _ in range(3)]
    process.send_signal(2)
    _, err = process.communicate(timeout=20)
    assert (seen, process.returncode, err) == (["qwen"] * 3, 0, "")


def test_watch_outlives_a_server_that_is_away() -> None:
    program = pathlib.Path(sys.executable).parent / "mx-select"
    argv = [str(program), "rank", "--server", "127.0.0.1:1", "--watch", "0.1", "--timeout", "1"]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    lines = [process.stderr.readline() for _ in range(2)]
    process.send_signal(2)
    process.communicate(timeout=20)
    assert all("does not answer ListSources" in line for line in lines)


@pytest.mark.parametrize(
    ("argv", "status", "line"),
    [
        ((), 2, "no server: give --server HOST:PORT or set MODEL_EXPRESS_URL or MX_SERVER_ADDRESS"),
        (("--server", "nowhere"), 2, "MX server address 'nowhere': give host:port"),
        (("--server", "h:1", "--policy", "fastest"), 2, "--policy fastest: not one of headroom, load_aware, random"),
        (("--server", "h:1", "--tls-cert", "c.pem"), 2, "a client certificate needs both cert_file and key_file"),
        (("--server", "h:1", "--tls-ca", "/no/such.pem"), 2, "TLS: ca_file /no/such.pem: No such file"),
        (
            ("--server", "h:1", "--token-file", "/no/token"),
            2,
            "--token-file /no/token: No such file or directory: name a",
        ),
        (("--server", "127.0.0.1:1", "--timeout", "2"), 1, "127.0.0.1:1 does not answer ListSources: UNAVAILABLE"),
    ],
)
def test_what_is_wrong_is_one_line(
    argv: tuple[str, ...], status: int, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    got, out, err = run(capsys, "rank", *argv)
    assert (got, out, err.count("\n")) == (status, "", 1)
    assert err.startswith("mx-select: ")
    assert line in err


def test_nothing_listed_is_said(server: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = run(capsys, "rank", "--server", server, "--model", "none")
    assert (status, err) == (1, f"mx-select: {server} lists no READY source of none that fits\n")


def test_a_reader_that_has_seen_enough_is_no_error(server: str) -> None:
    program = pathlib.Path(sys.executable).parent / "mx-select"
    argv = [str(program), "rank", "--server", server, "--json", "--watch", "0.1"]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait(20) == 0
    process.stderr.close()


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        (["forecast", "--targets", "0"], "argument --targets: '0' is not a whole number of 1 or more"),
        (["rank", "--watch", "0"], "argument --watch: '0' is not a number of seconds of 0.1 or more"),
        (["rank", "--top", "x"], "argument --top: 'x' is not a whole number of 1 or more"),
        (["rank", "--rank", "-1"], "argument --rank: '-1' is not a whole number of 0 or more"),
        ([], "the following arguments are required: COMMAND"),
    ],
)
def test_argparse_refuses_the_rest(argv: list[str], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(argv)
    prog = " ".join(["mx-select", *argv[:1]])
    assert (ended.value.code, capsys.readouterr().err) == (2, f"mx-select: {line}: see {prog} --help\n")


def test_a_token_that_is_not_there_yet_is_none_where_the_environment_names_it(
    server: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with the released client: a server without authentication needs none."""
    monkeypatch.setenv("MX_AUTH_TOKEN_PATH", "/no/token")
    assert run(capsys, "rank", "--server", server)[0] == 0


@pytest.mark.parametrize("command", ["rank", "forecast"])
def test_help_names_the_environment(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    out = " ".join(capsys.readouterr().out.split())
    assert ended.value.code == 0
    for name in ("MODEL_EXPRESS_URL, MX_SERVER_ADDRESS", "MODEL_NAME", "MX_AUTH_TOKEN_PATH", "MX_P2P_SOURCE_SELECTOR"):
        assert name in out
