"""What all tests share: the real parts as fixtures, the tiers, and one line for each tier that was left out."""

from __future__ import annotations

import asyncio
import collections
import os
import pathlib
from collections.abc import Iterator

import pytest

from tests.parts import kubernetes, prometheus, released, tools
from tests.parts.redis import RedisServer, redis_server

LONG = os.environ.get("MX_TEST_LONG") == "1"
SHARED = pathlib.Path(__file__).parents[2] / "shared"


def pytest_configure() -> None:
    """Says that the main thread has no event loop.

    pytest-asyncio and looptime ask the policy for one around every test, plain ones too. As long as nothing was ever
    set, Python before 3.14 makes one then, which nobody closes, and its warning fails whatever test is running when the
    collector finds it. Once told that there is none, the policy raises, which is what both plugins are prepared for.
    """
    asyncio.set_event_loop(None)


def _vllm() -> bool:
    return (tools.cache() / "real-vllm" / "complete").exists()


def _left_out(item: pytest.Item) -> str | None:
    """Why this test cannot run here."""
    for marker in item.iter_markers("tools"):
        absent = [name for name in marker.args if tools.tool(name) is None]
        if absent:
            return f"tool tier: no {', '.join(absent)}: run scripts/tools (needs Go)"
    if item.get_closest_marker("real_vllm") and not (LONG or os.environ.get("MX_TEST_VLLM") == "1"):
        return "heavy tier: a real vLLM takes minutes: set MX_TEST_VLLM=1 (after scripts/real-vllm)"
    if item.get_closest_marker("real_vllm") and not _vllm():
        return "heavy tier: no real vLLM: run scripts/real-vllm (8 GB)"
    if item.get_closest_marker("long") and not LONG:
        return "long runs: set MX_TEST_LONG=1"
    if item.get_closest_marker("released") and released.folder() is None:
        return "the released client is not installed: run scripts/setup"
    return None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if reason := _left_out(item):
            item.add_marker(pytest.mark.skip(reason=reason))
        if LONG and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(900))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """One line for each reason why tests were left out; from their reports, which come from other processes, too."""
    skipped = [report.longrepr for report in terminalreporter.stats.get("skipped", [])]
    reasons = collections.Counter(why[2].removeprefix("Skipped: ") for why in skipped if isinstance(why, tuple))
    for reason, count in sorted(reasons.items()):
        terminalreporter.write_line(f"left out: {count} test{'s' * (count > 1)}: {reason}")


@pytest.fixture(params=["debian", "3"])
def prometheus_binary(request: pytest.FixtureRequest) -> pathlib.Path:
    """Each Prometheus that users run: Debian's 2.42, and 3 where the tool tier is there."""
    found = prometheus.debian() if request.param == "debian" else prometheus.version_3()
    if found is None:
        pytest.skip(f"no Prometheus {request.param}: run scripts/{'setup' if request.param == 'debian' else 'tools'}")
    return found


@pytest.fixture(scope="session")
def api_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[kubernetes.ApiServer]:
    """One real API server for the whole run: use names of your own. Mark tests `tools("etcd", "kube-apiserver")`."""
    if reason := kubernetes.missing():
        pytest.skip(reason)
    with kubernetes.api_server(tmp_path_factory.mktemp("apiserver")) as server:
        yield server


@pytest.fixture
def redis(tmp_path: pathlib.Path) -> Iterator[RedisServer]:
    """A real Redis, empty, for one test."""
    with redis_server(tmp_path / "redis") as server:
        yield server


@pytest.fixture(scope="session")
def shared() -> pathlib.Path:
    """Schemas that are kept beside the repository, not in it."""
    if not SHARED.is_dir():
        pytest.skip("no ../shared folder with schemas beside the repository")
    return SHARED
