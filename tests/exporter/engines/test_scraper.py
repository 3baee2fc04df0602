"""The scraping thread: every target its own life, no gone pod, nobody waits for anybody."""

from __future__ import annotations

import pathlib
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from mx_exporter.engines import Engines, ScrapeSettings, readings
from mx_exporter.errors import ConfigurationError
from mx_exporter.model import Endpoint, Pod, Source
from tests.exporter.engines.servers import Answer, EngineServer
from tests.exporter.looking import Clock, KnownSources

QUICK = ScrapeSettings(interval=0.1, timeout=0.3, max_backoff=0.4)


def page(value: float) -> Answer:
    return Answer(f'vllm:kv_cache_usage_perc{{engine="0"}} {value}\n'.encode())


def pod(name: str) -> Pod:
    return Pod("n", name, f"uid-{name}", "127.0.0.1")


def source(name: str, *ports: int) -> Source:
    return Source(pod(name), tuple(Endpoint(port) for port in ports))


def wait(condition: Callable[[], object], seconds: float = 5.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "did not come true"
        time.sleep(0.01)


class Running:
    def __init__(self, *sources: Source, settings: ScrapeSettings = QUICK) -> None:
        self.discovery = KnownSources(sources)
        self.engines = Engines(self.discovery, settings)

    def value(self, name: str) -> float | None:
        usages = self.engines.usages().get(pod(name), ())
        return usages[0].value if usages else None

    def reason(self, name: str) -> str | None:
        return self.engines.usages()[pod(name)][0].reason


@pytest.fixture
def good() -> Iterator[EngineServer]:
    with EngineServer({"/metrics": page(0.5)}) as server:
        yield server


@pytest.fixture
def running() -> Iterator[Running]:
    made = Running()
    made.engines.start()
    yield made
    made.engines.stop()


def test_follows_the_sources(running: Running, good: EngineServer) -> None:
    running.discovery.known = (source("a", good.port),)
    assert running.reason("a") == "pending"
    wait(lambda: running.value("a") == 0.5)
    good.answers["/metrics"] = page(0.75)
    wait(lambda: running.value("a") == 0.75)
    running.discovery.known = ()
    assert running.engines.usages() == {}
    assert running.engines.scrapes() == ()
    wait(lambda: running.engines._states == {})
    asked = len(good.requests)
    time.sleep(0.3)
    assert len(good.requests) == asked


def test_a_pod_that_comes_back_with_another_uid_begins_anew(running: Running, good: EngineServer) -> None:
    running.discovery.known = (source("a", good.port),)
    wait(lambda: running.value("a") == 0.5)
    good.answers["/metrics"] = Answer(hang=True)
    again = Pod("n", "a", "another", "127.0.0.1")
    running.discovery.known = (Source(again, (Endpoint(good.port),)),)
    assert running.engines.usages()[again][0].value is None


def test_bad_neighbours_cost_a_good_engine_nothing(running: Running, good: EngineServer) -> None:
    bad = [
        Answer(hang=True),
        Answer(page(0.9).body, reset_after=5),
        Answer(b"\x00\xff" * 5000),
        Answer(endless=b"vllm:kv_cache_usage_perc" * 4000),
        Answer(status=503),
        Answer(b"[]", kind="application/json"),
        Answer(endless=b"vllm:kv_cache_usage_perc 1\n" * 2000),
    ]
    servers = [EngineServer({"/metrics": answer, "/prometheus/metrics": answer}) for answer in bad]
    try:
        for server in servers:
            server.__enter__()
        running.discovery.known = (source("good", good.port),)
        wait(lambda: running.value("good") == 0.5)
        alone = _asked_within(good, 1.0)
        sources = [source(f"bad-{i}", server.port) for i, server in enumerate(servers)]
        running.discovery.known = (*sources, source("good", good.port))
        time.sleep(0.5)  # until each of them has failed
        assert _asked_within(good, 1.5) >= alone / 2
        assert running.value("good") == 0.5
        assert all(running.value(f"bad-{i}") is None for i in range(len(bad)))
    finally:
        for server in servers:
            server.__exit__()


def _asked_within(server: EngineServer, seconds: float) -> float:
    """Requests a second."""
    before, began = len(server.requests), time.monotonic()
    time.sleep(seconds)
    return (len(server.requests) - before) / (time.monotonic() - began)


def test_a_failing_target_is_asked_less_and_less_and_at_once_found_when_back(
    running: Running, good: EngineServer
) -> None:
    good.answers["/metrics"] = Answer(status=500)
    good.answers["/prometheus/metrics"] = Answer(status=500)
    running.discovery.known = (source("a", good.port),)
    wait(lambda: good.asked("/metrics") >= 3)
    before, began = good.asked("/metrics"), time.monotonic()
    time.sleep(1.6)
    assert good.asked("/metrics") - before <= (time.monotonic() - began) / QUICK.max_backoff + 1
    good.answers["/metrics"] = page(0.25)
    wait(lambda: running.value("a") == 0.25, 1.0)


def test_stops_at_once_though_a_target_hangs(good: EngineServer) -> None:
    good.answers["/metrics"] = Answer(hang=True)
    running = Running(source("a", good.port), settings=ScrapeSettings(interval=0.1, timeout=30))
    running.engines.start()
    wait(lambda: good.requests)
    before = threading.active_count()
    began = time.monotonic()
    running.engines.stop()
    assert time.monotonic() - began < 1
    assert threading.active_count() == before - 1


def test_what_a_page_brought_about_stays_with_its_target(
    running: Running, good: EngineServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    whole = readings.read

    def broken(table: object, lines: tuple[bytes, ...]) -> object:
        if any(b"poison" in line for line in lines):
            raise ZeroDivisionError
        return whole(table, lines)  # type: ignore[arg-type]

    monkeypatch.setattr(readings, "read", broken)
    with EngineServer({"/metrics": Answer(b'vllm:kv_cache_usage_perc{x="poison"} 1\n')}) as poisonous:
        running.discovery.known = (source("bad", poisonous.port), source("good", good.port))
        wait(lambda: running.value("good") == 0.5)
        wait(lambda: running.reason("bad") == "internal")
        good.answers["/metrics"] = page(0.6)
        wait(lambda: running.value("good") == 0.6)


def test_a_file_that_cannot_be_used_is_said_at_the_start(tmp_path: pathlib.Path) -> None:
    engines = Engines(KnownSources(), ScrapeSettings(gauges_file=tmp_path / "no.yaml"))
    with pytest.raises(ConfigurationError, match=r"no\.yaml: No such file or directory: name a file of engines"):
        engines.start()
    engines.stop()


def test_engines_of_the_users_own(good: EngineServer, tmp_path: pathlib.Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text("engines: [{engine: mine, usage: [{metric: 'my:cache', unit: percent}]}]")
    good.text("my:cache 40\nvllm:kv_cache_usage_perc 0.2\n")
    running = Running(source("a", good.port), settings=ScrapeSettings(gauges_file=own))
    running.engines.scrape_once()
    assert [(usage.engine, usage.value) for usage in running.engines.usages()[pod("a")]] == [
        ("mine", 0.4),
        ("vllm", 0.2),
    ]


def test_one_look_lasts_as_long_as_it_takes(good: EngineServer) -> None:
    clock = Clock()
    engines = Engines(KnownSources((source("a", good.port),)), QUICK, clock)
    engines.scrape_once()
    clock.now += 3600
    assert engines.usages()[pod("a")][0].value == 0.5


def test_one_look_waits_for_a_discovery_that_has_not_heard_yet(good: EngineServer) -> None:
    class Late(KnownSources):
        def age(self) -> float | None:
            return None if time.monotonic() < heard else 0.0

        def sources(self) -> tuple[Source, ...]:
            return self.known if time.monotonic() >= heard else ()

    heard = time.monotonic() + 0.3
    engines = Engines(Late((source("a", good.port),)), QUICK)
    engines.scrape_once()
    assert engines.usages()[pod("a")][0].value == 0.5
