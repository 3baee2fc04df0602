"""The real parts themselves: each starts, answers and leaves nothing behind."""

from __future__ import annotations

import os
import pathlib
import sys
import urllib.error

import pytest

from mx_lab.processes import Process, ProcessError, listens, stopping, wait_until
from tests.parts import released
from tests.parts.kubernetes import ApiServer
from tests.parts.prometheus import prometheus
from tests.parts.redis import RedisServer

SLEEPS = "import subprocess, sys, time; p = subprocess.Popen(['sleep', '60']); print(p.pid, flush=True); time.sleep(60)"


def alive(pid: int) -> bool:
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def gone(pid: int) -> None:
    """The kernel takes a moment for a killed process that is nobody's child any more."""
    wait_until(lambda: not alive(pid), 2, f"the end of process {pid}")


def test_stopping_a_process_ends_its_children_too(tmp_path: pathlib.Path) -> None:
    with Process("parent", [sys.executable, "-c", SLEEPS], tmp_path / "log") as parent:
        parent.wait_ready(lambda: parent.output.strip().isdigit())
        child = int(parent.output)
        assert alive(child)
    gone(parent.pid)
    gone(child)


def test_a_child_dies_with_a_parent_that_was_killed(tmp_path: pathlib.Path) -> None:
    starts_one = (
        "import pathlib, time; from mx_lab.processes import Process;"
        f"p = Process('child', ['sleep', '60'], pathlib.Path({str(tmp_path / 'child')!r}));"
        "print(p.pid, flush=True); time.sleep(60)"
    )
    with Process("parent", [sys.executable, "-c", starts_one], tmp_path / "log", env=dict(os.environ)) as parent:
        parent.wait_ready(lambda: parent.output.strip().isdigit())
        child = int(parent.output)
        parent.kill()
        gone(child)


def test_a_process_that_ends_early_says_its_last_words(tmp_path: pathlib.Path) -> None:
    with (
        Process(
            "short", [sys.executable, "-c", "print('no such flag'); raise SystemExit(3)"], tmp_path / "log"
        ) as short,
        pytest.raises(ProcessError, match=r"(?s)short ended with 3; its last output:\nno such flag"),
    ):
        short.wait_ready(lambda: False)


def test_a_program_that_is_not_there_is_named(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ProcessError, match="no program 'no-such-program' on PATH"):
        Process("x", ["no-such-program"], tmp_path / "log")


def test_stopping_ends_all_when_the_block_raises(tmp_path: pathlib.Path) -> None:
    started: list[Process] = []
    with pytest.raises(RuntimeError, match="inside"), stopping(started):
        started += [Process(f"p{n}", ["sleep", "60"], tmp_path / f"log{n}") for n in range(3)]
        raise RuntimeError("inside")
    assert not any(alive(process.pid) for process in started)


def test_prometheus_scrapes_itself(tmp_path: pathlib.Path, prometheus_binary: pathlib.Path) -> None:
    with prometheus(tmp_path, binary=prometheus_binary, config={}) as server:
        assert server.query("vector(1)") == [({}, 1.0)]
    assert not listens(server.port)


def test_redis_answers_and_forgets_when_killed(redis: RedisServer) -> None:
    assert listens(redis.port)
    redis.kill()
    assert not listens(redis.port)
    redis.start()
    assert listens(redis.port)


@pytest.mark.tools("etcd", "kube-apiserver")
def test_the_api_server_checks_rights_and_audits(api_server: ApiServer) -> None:
    token = api_server.service_account("parts", "nobody")
    with pytest.raises(urllib.error.HTTPError) as refused:
        api_server.request("GET", "/api/v1/pods", token=token)
    assert refused.value.code == 403
    mine = api_server.audit("system:serviceaccount:parts:nobody")
    assert [(event["verb"], event["responseStatus"]["code"]) for event in mine] == [("list", 403)]


@pytest.mark.released
def test_the_released_client_is_at_hand_without_torch() -> None:
    publisher = released.module("metadata.publisher")
    assert publisher.PublisherThread.__name__ == "PublisherThread"
    assert "torch" not in sys.modules
