"""The heavy tier itself: the cache fills and empties as its page says, and the plugins of both clients load."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator

import pytest
import tomllib

from mx_lab.processes import wait_until
from tests.parts import vllm

pytestmark = [pytest.mark.real_vllm, pytest.mark.timeout(400)]

PROJECT = vllm.REPOSITORY / "pyproject.toml"
PLUGINS = """
import importlib.metadata, vllm.plugins
vllm.plugins.load_general_plugins()
from modelexpress import source_selection
print("PLUGINS", *{entry.name for entry in importlib.metadata.entry_points(group="vllm.general_plugins")})
print("SELECTORS", *source_selection.SELECTORS)
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[vllm.RealVllm]:
    with vllm.real_vllm(tmp_path_factory.mktemp("vllm")) as running:
        yield running


def highest_usage(server: vllm.RealVllm, seconds: float) -> float:
    highest, end = 0.0, time.monotonic() + seconds
    while time.monotonic() < end:
        highest = max(highest, server.kv_usage())
        time.sleep(0.25)
    return highest


def test_the_cache_fills_under_load_and_empties_after_it(server: vllm.RealVllm) -> None:
    assert server.kv_usage() == 0.0
    with server.load(16, seconds=30) as load:
        assert highest_usage(server, 6) > 0.8
    assert load.completed > 16
    assert load.failed == 0
    wait_until(lambda: server.kv_usage() == 0.0, 5, "an empty cache")


def test_half_the_load_fills_half_the_cache(server: vllm.RealVllm) -> None:
    with server.load(8, seconds=30):
        assert 0.4 < highest_usage(server, 6) < 0.8


def test_a_byte_is_a_token_and_the_end_token_is_ignored(server: vllm.RealVllm) -> None:
    assert server.complete("a" * 100, 17) == 17
    assert "vllm:prompt_tokens_total" in server.page()


def test_both_clients_plugins_load_beside_vllm() -> None:
    vllm.bring_up_to_date()
    declared = tomllib.loads(PROJECT.read_text())["project"].get("entry-points", {}).get("vllm.general_plugins", {})
    done = subprocess.run([vllm.python(), "-c", PLUGINS], capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    assert "Failed to load plugin" not in done.stdout + done.stderr
    lines = {line.split()[0]: set(line.split()[1:]) for line in done.stdout.splitlines() if line}
    assert {"modelexpress", *declared} <= lines["PLUGINS"]
    assert {"random", "rendezvous_hash", "load_aware"} <= lines["SELECTORS"]
