"""What users of such controllers met when their Prometheus failed, at the real seam: HTTP.

Each test names the public report it comes from.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from mx_operator.core.marks import is_marked
from mx_operator.core.targets import State
from mx_operator.policies.spec import Models, PartialResponse, Prometheus, Signal
from tests.operator.parts.mx import FakeMx, serving
from tests.operator.parts.prometheus_http import FakePrometheus, Handler, fake_prometheus, says, vector
from tests.operator.parts.running import cycles, policy, running, until

HOSTS = {f"10.0.0.{n}": 0.7 for n in range(1, 4)}


class Setup:
    """Three sources that a running operator writes."""

    def __init__(self, mx: FakeMx, address: str, prometheus: FakePrometheus) -> None:
        self.mx, self.address, self.prometheus = mx, address, prometheus

    def beat(self) -> None:
        for source in self.mx.sources.values():
            self.mx.heartbeat(source)

    def loads(self) -> list[float | None]:
        return [source.load for source in self.mx.sources.values()]

    def policy(self, **changes: Any) -> Any:
        return policy(self.address, self.prometheus.url, **changes)

    async def written(self) -> None:
        """Heartbeats until every source has a load of ours."""

        def all_marked() -> bool:
            return all(is_marked(load) for load in self.loads())

        self.beat()
        for _ in range(20):
            try:
                await until(all_marked, "loads of ours", 0.5)
            except TimeoutError:
                self.beat()
            else:
                return
        raise AssertionError("never written")


@pytest_asyncio.fixture
async def setup() -> AsyncIterator[Setup]:
    fake = FakeMx()
    for n in range(1, 4):
        fake.add(n)
    async with serving(fake) as address:
        with fake_prometheus(says(HOSTS)) as prometheus:
            yield Setup(fake, address, prometheus)


async def test_empty_answers_are_not_idle(setup: Setup) -> None:
    """KEDA #3065: null values during an incident were read as 0."""
    async with running(setup.policy()) as (_, seen):
        await setup.written()
        setup.prometheus.answer_with(says({}))
        setup.beat()
        await cycles(seen, 2)
        writes = len(setup.mx.writes)
        await cycles(seen, 5)
        assert len(setup.mx.writes) == writes
        assert seen.last.counts.unmatched == 3
        assert (seen.last.data_fresh.ok, seen.last.data_fresh.reason) == (False, "NoSeries")


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf", "abc", ""])
async def test_what_is_no_number_is_never_written(setup: Setup, value: str) -> None:
    """KEDA #7475: NaN became -9.2e15."""
    setup.prometheus.answer_with(says(dict.fromkeys(HOSTS, value)))
    setup.beat()
    async with running(setup.policy()) as (_, seen):
        await until(lambda: seen.reports and seen.last.counts.invalid == 3, "invalid sources")
        setup.beat()
        await cycles(seen, 3)
        assert setup.mx.writes == []
        assert seen.last.skips == {"not_finite": 3}


@pytest.mark.parametrize(("value", "stored"), [("-0.1", 0.001), ("1e9", 0.9986)])
async def test_finite_values_are_clamped_and_counted(setup: Setup, value: str, stored: float) -> None:
    setup.prometheus.answer_with(says(dict.fromkeys(HOSTS, value)))
    async with running(setup.policy()) as (_, seen):
        await setup.written()
        assert [round(load or -1, 4) for load in setup.loads()] == pytest.approx([stored] * 3, abs=2e-4)
        assert seen.last.counts.clamped == 3
        assert seen.metrics.registry.get_sample_value("mx_operator_clamped_total", {"policy": "p"})


async def test_a_503_for_one_policy_harms_no_other_and_heals_by_itself(setup: Setup) -> None:
    """KEDA #3152: never recovered after a 503, and one failing trigger blocked the others."""

    def broken(form: dict[str, str], handler: Handler) -> None:
        if "broken" in form["query"]:
            handler.say({"status": "error", "error": "storage is away"}, 503)
        else:
            handler.say(vector(HOSTS))

    setup.prometheus.answer_with(broken)
    other = setup.mx.add(9, model="other", host="10.0.0.1")
    good = setup.policy(name="good", models=Models(("m",)))
    bad = setup.policy(name="bad", query="broken", models=Models(("other",)))
    async with running(good, bad) as (_, seen):
        setup.mx.sources.pop(other.key)
        await setup.written()
        setup.mx.sources[other.key] = other
        setup.mx.heartbeat(other)
        await cycles(seen, 3)
        last = seen.of("bad")[-1]
        assert (last.prometheus.ok, last.prometheus.reason) == (False, "HTTP503")
        assert "storage is away" in last.prometheus.message
        assert other.load is None
        setup.prometheus.answer_with(says(HOSTS))
        await setup.written()
        assert other.load is not None


async def test_answers_that_come_and_go_never_alternate_with_a_constant(setup: Setup) -> None:
    """KEDA #4249: flapping between the value and the fallback."""
    turn = [0]

    def flapping(_form: dict[str, str], handler: Handler) -> None:
        turn[0] += 1
        handler.say(vector(HOSTS if turn[0] % 2 else {}))

    setup.prometheus.answer_with(flapping)
    async with running(setup.policy()) as (_, seen):
        await setup.written()
        await cycles(seen, 10)
        assert {round(write.load or -1, 2) for write in setup.mx.writes} == {0.7}


async def test_one_missed_scrape_is_one_skipped_cycle(setup: Setup) -> None:
    """llm-d #1123: one scrape failure flipped the state."""
    async with running(setup.policy()) as (_, seen):
        await setup.written()
        before = setup.loads()
        setup.prometheus.answer_with(says({}))
        await until(lambda: seen.last.counts.unmatched == 3, "the gap")
        setup.prometheus.answer_with(says(HOSTS))
        await until(lambda: seen.last.counts.matched == 3, "the end of the gap")
        assert setup.loads() == before


async def test_all_targets_down_is_loud_and_loads_fall_back_to_the_sources_own(setup: Setup) -> None:
    """llm-d #2100: a failure of all scrapes pinned saturation in silence."""
    async with running(setup.policy()) as (_, seen):
        await setup.written()
        setup.prometheus.answer_with(says(HOSTS, age=60.0))
        await cycles(seen, 2)
        for source in setup.mx.sources.values():
            setup.mx.heartbeat(source, 0.25)
        await cycles(seen, 5)
        assert setup.loads() == [0.25] * 3
        assert (seen.last.data_fresh.ok, seen.last.data_fresh.reason) == (False, "Stale")
        assert seen.last.stale_ratio == 1.0
        labels = {"policy": "p", "state": "stale"}
        assert seen.metrics.registry.get_sample_value("mx_operator_sources", labels) == 3


async def test_a_stale_after_below_the_scrape_interval_shows_as_a_ratio_and_never_oscillates(setup: Setup) -> None:
    """llm-d #2514: refreshed every 15 s, stale after 200 ms."""
    start = time.time()

    def scraped(_form: dict[str, str], handler: Handler) -> None:
        handler.say(vector(HOSTS, age=(time.time() - start) % 1.5))

    setup.prometheus.answer_with(scraped)
    setup.beat()
    async with running(setup.policy(stale_after=0.3)) as (_, seen):
        await until(lambda: {report.stale_ratio for report in seen.reports} >= {0.0, 1.0}, "both", 15)
        assert {round(write.load or -1, 2) for write in setup.mx.writes} <= {0.7}


@pytest.mark.parametrize("envelope", [{"warnings": ["store 10.1.2.3 is down"]}, {"isPartial": True}])
async def test_half_an_answer_is_refused_unless_asked_for(setup: Setup, envelope: dict[str, Any]) -> None:
    """Thanos and VictoriaMetrics answer 200 with what is left when a part of the storage is away."""
    setup.prometheus.answer_with(says({"10.0.0.1": 0.7}, **envelope))
    setup.beat()
    async with running(setup.policy()) as (_, seen):
        await cycles(seen, 3)
        setup.beat()
        await cycles(seen, 3)
        assert setup.mx.writes == []
        assert (seen.last.prometheus.ok, seen.last.prometheus.reason) == (False, "PartialResponse")
    accepting = Prometheus(setup.prometheus.url, timeout=1.0, partial_response=PartialResponse.ACCEPT)
    setup.beat()
    async with running(setup.policy(prometheus=accepting)) as (_, seen):
        await cycles(seen, 2)
        setup.beat()
        await until(lambda: setup.mx.writes, "a write")
    form = setup.prometheus.requests[-1][1]
    assert (form["partial_response"], form["deny_partial_response"]) == ("true", "0")


def silence(_form: dict[str, str], handler: Handler) -> None:
    time.sleep(30)


def trickle(_form: dict[str, str], handler: Handler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", "100000")
    handler.end_headers()
    for _ in range(300):
        handler.wfile.write(b" ")
        handler.wfile.flush()
        time.sleep(0.1)


def trickling_headers(_form: dict[str, str], handler: Handler) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\n")
    for n in range(300):
        handler.wfile.write(f"X-{n}: 1\r\n".encode())
        handler.wfile.flush()
        time.sleep(0.1)


@pytest.mark.parametrize("fault", [silence, trickle, trickling_headers])
async def test_a_prometheus_that_hangs_holds_up_neither_lists_nor_threads(setup: Setup, fault: Any) -> None:
    """prometheus-api-client #277: waits for ever."""
    setup.prometheus.answer_with(fault)
    setup.beat()
    quick = Prometheus(setup.prometheus.url, timeout=0.4)
    async with running(setup.policy(prometheus=quick)) as (fleet, seen):
        await cycles(seen, 2)
        threads, lists, started = threading.active_count(), len(setup.mx.lists), time.monotonic()
        await until(lambda: seen.last.prometheus.reason == "Timeout", "the deadline", 5)
        await until(lambda: time.monotonic() - started > 1.5, "some time", 6)
        assert len(setup.mx.lists) - lists >= 2, "a list waits at most a second for queries"
        ours = [t for t in threading.enumerate() if t.name.startswith("signal-")]
        assert len(ours) == 1
        assert threading.active_count() <= threads + 8  # the fake's own, one for each connection
        assert fleet.alive
        assert setup.mx.writes == []
        setup.prometheus.answer_with(says(HOSTS))
        await setup.written()


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (lambda _f, h: h.say("<html>sign in</html>", 200, "text/html"), "NotPrometheus"),
        (lambda _f, h: h.say({"status": "error", "error": "bad query"}, 400), "HTTP400"),
        (lambda _f, h: h.say({"data": {"resultType": "matrix", "result": []}}), "NotAVector"),
        (lambda _f, h: h.say({"data": {"resultType": "vector", "result": [{"metric": {}}]}}), "NotAVector"),
        (lambda _f, h: h.say({"data": {"resultType": "vector", "result": None}}), "NotAVector"),
        (lambda _f, h: h.say("[]"), "NotPrometheus"),
        (lambda _f, h: h.say("[" * 100_000), "NotPrometheus"),
        (lambda _f, h: (h.send_response(302), h.send_header("Location", "/login"), h.end_headers()), "Redirect"),
        (lambda _f, h: h.connection.shutdown(socket.SHUT_RDWR), "Unreachable"),
    ],
)
async def test_whatever_answers_the_reason_is_told(setup: Setup, answer: Any, reason: str) -> None:
    setup.prometheus.answer_with(answer)
    setup.beat()
    async with running(setup.policy()) as (_, seen):
        await until(lambda: seen.reports and seen.last.prometheus.ok is False, "an error")
        assert seen.last.prometheus.reason == reason
        assert seen.last.counts.stale == 3
        assert all(
            d.state is State.STALE for cycle in seen.cycles[-1:] for d in (cycle.plan.decisions if cycle.plan else ())
        )


async def test_a_prometheus_that_is_not_there_is_told_and_found_again(setup: Setup) -> None:
    gone = policy(setup.address, "http://127.0.0.1:9", name="p")
    async with running(gone) as (_, seen):
        await until(lambda: seen.reports and seen.last.prometheus.ok is False, "an error")
        assert seen.last.prometheus.reason == "Unreachable"


async def test_the_query_is_in_the_body_with_everything_a_vendor_needs(setup: Setup, tmp_path: Any) -> None:
    token = tmp_path / "token"
    token.write_text("first\n")
    prometheus = Prometheus(
        setup.prometheus.url + "/prefix",
        timeout=1.0,
        bearer_token_file=str(token),
        headers=(("X-Scope-OrgID", "team"),),
    )
    async with running(setup.policy(prometheus=prometheus)) as (_, seen):
        await cycles(seen, 2)
        path, form, headers = setup.prometheus.requests[-1]
        assert path == "/prefix/api/v1/query"
        assert {"nocache": "1", "dedup": "true", "partial_response": "false"}.items() <= form.items()
        assert (headers["Authorization"], headers["X-Scope-OrgID"]) == ("Bearer first", "team")
        token.write_text("second token\n")
        await until(lambda: setup.prometheus.requests[-1][2]["Authorization"] == "Bearer second token", "rotation")
        token.unlink()
        await cycles(seen, 2)
        assert seen.last.prometheus.ok, "a token that is gone for a moment is kept"


async def test_two_policies_with_one_signal_ask_once(setup: Setup) -> None:
    one, other = setup.policy(name="a", models=Models(("m",))), setup.policy(name="b", models=Models(("x",)))
    async with running(one, other) as (_, seen):
        await cycles(seen, 4)
        assert len(setup.prometheus.requests) <= len(seen.cycles) + 1


async def test_a_series_flood_is_refused(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mx_operator.prometheus.clients.MAX_SERIES", 2)
    async with running(setup.policy()) as (_, seen):
        await until(lambda: seen.reports and seen.last.prometheus.ok is False, "an error")
        assert seen.last.prometheus.reason == "TooManySeries"


async def test_a_signal_may_be_asked_in_its_own_words(setup: Setup) -> None:
    signal = Signal(
        "s", "max by (pod_ip) (x) # comment", freshness_query="min by (pod_ip) (timestamp(x))", join_label="pod_ip"
    )
    setup.prometheus.answer_with(says(HOSTS, label="pod_ip"))
    async with running(setup.policy(signals=(signal,))) as (_, seen):
        await setup.written()
        assert seen.last.counts.matched == 3
