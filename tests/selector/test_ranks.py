"""Many ranks, one page: the totals of all, whoever of them dies, whoever of them serves."""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from mx_lab.processes import free_port, wait_until

RANKS = 12 if os.environ.get("MX_TEST_QUICK") == "1" else 100
ROOT = pathlib.Path(__file__).parents[2]


class Pod:
    """Running ranks and their page."""

    def __init__(self, folder: pathlib.Path, count: int) -> None:
        self.folder, self.port = folder, free_port()
        environ = os.environ | {
            "MX_METRICS_ENABLED": "1",
            "MX_METRICS_ADDRESS": "127.0.0.1",
            "MX_METRICS_PORT": str(self.port),
            "MX_METRICS_DIR": str(folder),
            "MX_METRICS_BIND_RETRY_SECS": "0.1",
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.selector.ranks", str(count)],
            cwd=ROOT,
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pids = [self.answer("ready") for _ in range(count)]

    def answer(self, word: str) -> int:
        assert self.process.stdout is not None
        said, pid = self.process.stdout.readline().split()
        assert said == word
        return int(pid)

    def again(self, pid: int) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"again {pid}\n")
        self.process.stdin.flush()
        assert self.answer("again") == pid

    def serving(self) -> int:
        return int((self.folder / "turn").read_text())

    def page(self, patience: float = 5.0) -> dict[str, float]:
        """Every sample of one scrape, by name and labels."""
        end = time.monotonic() + patience
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=5) as answer:
                    text = answer.read().decode()
                break
            except (urllib.error.URLError, ConnectionError):
                if time.monotonic() > end:
                    raise
                time.sleep(0.005)
        families = text_string_to_metric_families(text)
        return {f"{s.name}{sorted(s.labels.items())}": s.value for family in families for s in family.samples}

    def total(self, name: str) -> float:
        return sum(value for sample, value in self.page().items() if sample.startswith(f"{name}["))

    def wait_for(self, name: str, value: float) -> None:
        wait_until(lambda: self.total(name) == value, 60, f"{name} to reach {value}")

    def kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        self.pids.remove(pid)

    def end(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(30)
        self.process.stdout.close()


@contextlib.contextmanager
def pod(folder: pathlib.Path, count: int) -> Iterator[Pod]:
    running = Pod(folder, count)
    try:
        yield running
    finally:
        running.end()


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "metrics"


@pytest.mark.timeout(400)
def test_a_hundred_ranks_have_one_page_whose_totals_survive_each_death(folder: pathlib.Path) -> None:
    with pod(folder, RANKS) as ranks:
        ranks.wait_for("mx_p2p_source_attempts_total", RANKS)
        before = ranks.page()
        assert ranks.total("mx_p2p_list_sources_total") == RANKS
        assert ranks.total("mx_selector_chosen_load_count") == RANKS
        ranks.kill(next(pid for pid in ranks.pids if pid != ranks.serving()))
        assert ranks.page() == before
        gaps = []
        for _ in range(5):
            server = ranks.serving()
            started = time.monotonic()
            ranks.kill(server)
            assert ranks.page() == before
            gaps.append(time.monotonic() - started)
            assert ranks.serving() != server
        assert max(gaps) < 5.0, "the kernel hands the turn on at once; the rest is this machine's"
        ranks.again(ranks.pids[0])
        ranks.wait_for("mx_p2p_source_attempts_total", RANKS + 1)


def test_a_new_run_starts_from_nothing(folder: pathlib.Path) -> None:
    with pod(folder, 2) as first:
        first.wait_for("mx_p2p_source_attempts_total", 2)
    with pod(folder, 1) as second:
        second.wait_for("mx_p2p_source_attempts_total", 1)
    assert len(list(folder.glob("rank-*.json"))) == 1, "files of ended runs are gone"


def test_a_rank_that_joins_late_folds_the_dead_into_one_file(folder: pathlib.Path) -> None:
    with pod(folder, 3) as ranks:
        ranks.wait_for("mx_p2p_source_attempts_total", 3)
        ranks.kill(next(pid for pid in ranks.pids if pid != ranks.serving()))
        with pod(folder, 1):
            ranks.wait_for("mx_p2p_source_attempts_total", 4)
            assert len(list(folder.glob("rank-*.json"))) == 3
            assert (folder / "gone.json").exists()
