"""What MX servers do to a writer, at the real seam: gRPC, and the embedded server where it can be had."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import pathlib
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc
import pytest
import pytest_asyncio

import mx_wire
from mx_lab.processes import Process, free_port
from mx_operator.core.marks import is_marked
from mx_operator.core.model import SourceKey, Write
from mx_operator.mx.errors import MxError, RefusedError
from mx_operator.mx.servers import GrpcServer
from mx_operator.policies.spec import Mode, Models, Server
from tests.operator.parts.mx import READY, FakeMx, Source, serving
from tests.operator.parts.prometheus_http import FakePrometheus, fake_prometheus, says
from tests.operator.parts.running import HEARTBEAT, cycles, policy, running, until


@pytest.fixture
def prometheus() -> Iterator[FakePrometheus]:
    with fake_prometheus(says({f"10.0.0.{n}": 0.7 for n in range(1, 60)})) as fake:
        yield fake


@pytest_asyncio.fixture
async def mx() -> AsyncIterator[tuple[FakeMx, str]]:
    fake = FakeMx()
    async with serving(fake) as address:
        yield fake, address


async def beaten(mx: FakeMx, seen: Any) -> None:
    """A heartbeat of every source that the operator has seen happen."""
    for _ in range(2):
        for source in mx.sources.values():
            mx.heartbeat(source)
        await cycles(seen, 2)


def write_counts(mx: FakeMx) -> dict[SourceKey, int]:
    counted: dict[SourceKey, int] = {}
    for write in mx.writes:
        counted[write.key] = counted.get(write.key, 0) + 1
    return counted


async def test_only_ready_is_ever_sent_with_the_rows_own_rank(mx: Any, prometheus: FakePrometheus) -> None:
    fake, address = mx
    for n in range(1, 4):
        fake.add(n, rank=n)
    fake.add(4)  # INITIALIZING: known, never READY
    async with running(policy(address, prometheus.url)) as (_, seen):
        for _ in range(2):
            for n in range(1, 4):
                fake.heartbeat(fake.sources[SourceKey(f"{n:016x}", f"w{n}")])
            await cycles(seen, 4)
    assert {(write.key.worker_id, write.rank) for write in fake.writes} == {("w1", 1), ("w2", 2), ("w3", 3)}
    assert {write.status for write in fake.writes} == {READY}
    assert all(is_marked(write.load) for write in fake.writes)


async def test_a_hung_source_is_written_no_later_than_the_window(mx: Any, prometheus: FakePrometheus) -> None:
    """Its metrics stay fresh and its load jumps all the time, but its heartbeats have ended."""
    fake, address = mx
    fake.add(1)
    async with running(policy(address, prometheus.url)) as (_, seen):
        await beaten(fake, seen)
        last_beat = asyncio.get_running_loop().time()
        for turn in range(36):
            prometheus.answer_with(says({"10.0.0.1": turn % 2}))
            await asyncio.sleep(0.1)
    assert len(fake.writes) > 8
    assert fake.writes[-1].at <= last_beat + 0.9 * HEARTBEAT


async def test_a_source_that_demotes_itself_is_left_alone_from_the_next_list_on(
    mx: Any, prometheus: FakePrometheus
) -> None:
    fake, address = mx
    source = fake.add(1)

    def demoted_meanwhile(stored: Source) -> None:
        fake.before_store = None
        stored.ready = False  # the write that is under way resurrects it: the one race nobody can exclude

    async with running(policy(address, prometheus.url)) as (_, seen):
        await beaten(fake, seen)
        source.ready = False
        await cycles(seen, 2)
        count = len(fake.writes)
        prometheus.answer_with(says({"10.0.0.1": 0.1}))
        await cycles(seen, 5)
        assert len(fake.writes) == count
        fake.before_store = demoted_meanwhile


async def test_an_empty_list_changes_nothing_and_what_comes_back_as_it_was_had_no_heartbeat(
    mx: Any, prometheus: FakePrometheus
) -> None:
    fake, address = mx
    source = fake.add(1)
    fake.heartbeat(source)
    async with running(policy(address, prometheus.url)) as (_, seen):
        await cycles(seen, 3)
        fake.empty = True
        await until(lambda: seen.last.server.reason == "EmptyList", "the empty list")
        assert seen.last.server.ok is None
        fake.empty = False
        await cycles(seen, 5)
        assert fake.writes == []
        fake.heartbeat(source)
        await until(lambda: fake.writes, "a write after a heartbeat")


async def test_a_black_hole_is_unready_never_dead_and_found_again(
    mx: Any, prometheus: FakePrometheus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """KEDA #8211: Ready for ever with a dead gRPC peer."""
    monkeypatch.setattr("mx_operator.loop.endpoints.LIST_DEADLINE", 0.2)
    made_anew: list[GrpcServer] = []
    reconnect = GrpcServer.reconnect

    async def counted(self: GrpcServer) -> None:
        made_anew.append(self)
        await reconnect(self)

    monkeypatch.setattr(GrpcServer, "reconnect", counted)
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as hole:  # accepts by the kernel, never answers
        port = hole.getsockname()[1]
        async with running(policy(f"127.0.0.1:{port}", prometheus.url)) as (fleet, seen):
            await until(lambda: len(seen.reports) >= 4, "polls")
            assert (fleet.ready, fleet.alive) == (False, True)
            assert seen.last.server.ok is False
            assert fleet.unready() == [f"127.0.0.1:{port}"]
            assert made_anew, "a connection that three lists have died on is not used again"
            hole.close()
            fake = FakeMx()
            fake.heartbeat(fake.add(1))
            async with serving(fake, port):
                await until(lambda: fleet.ready and seen.last.server.ok, "recovery", 15)


async def test_one_dead_server_harms_no_other(mx: Any, prometheus: FakePrometheus) -> None:
    fake, address = mx
    fake.add(1)
    dead = policy(f"127.0.0.1:{free_port()}", prometheus.url, name="dead")
    async with running(policy(address, prometheus.url), dead) as (fleet, seen):
        await beaten(fake, seen)
        await until(lambda: fake.writes, "a write")
        assert [report.server.reason for report in seen.of("dead")][-1] == "Unavailable"
        assert fleet.alive


async def test_refused_credentials_stop_the_writes_for_a_minute(mx: Any, prometheus: FakePrometheus) -> None:
    fake, address = mx
    fake.add(1)
    fake.write_fails = grpc.StatusCode.PERMISSION_DENIED
    async with running(policy(address, prometheus.url)) as (_, seen):
        await beaten(fake, seen)
        fake.write_fails = None
        await beaten(fake, seen)
        assert fake.writes == []
        assert "writes_denied" in seen.last.skips
        denied = {"policy": "p", "result": "denied"}
        assert seen.metrics.registry.get_sample_value("mx_operator_writes_total", denied) == 1


@pytest.mark.parametrize("result", ["refused", "failed"])
async def test_a_write_that_fails_is_counted_and_not_repeated_by_itself(
    mx: Any, prometheus: FakePrometheus, result: str
) -> None:
    fake, address = mx
    fake.add(1)
    fake.refuses = result == "refused"
    fake.write_fails = grpc.StatusCode.INTERNAL if result == "failed" else None
    async with running(policy(address, prometheus.url)) as (_, seen):
        await beaten(fake, seen)
        counted = {"policy": "p", "result": result}
        assert (seen.metrics.registry.get_sample_value("mx_operator_writes_total", counted) or 0) >= 1
        assert max(report.counts.failed for report in seen.reports) == 1, "once a cycle"


async def test_a_server_that_is_slow_to_write_gets_fewer(mx: Any, prometheus: FakePrometheus) -> None:
    fake, address = mx
    for n in range(1, 40):
        fake.add(n)
    fake.write_delay = 0.7
    async with running(policy(address, prometheus.url)) as (_, seen):
        await beaten(fake, seen)
        await until(lambda: seen.cycles[-1].ledger.pace.share < 1, "a slower pace")


async def test_the_write_budget_holds_and_the_rest_is_for_the_next_list(mx: Any, prometheus: FakePrometheus) -> None:
    fake, address = mx
    for n in range(1, 40):
        fake.add(n)
    slow = policy(address, prometheus.url, server=Server(address, max_writes_per_second=5))
    async with running(slow) as (_, seen):
        await beaten(fake, seen)
        await until(lambda: len(fake.writes) >= 10, "writes", 8)
        spread = fake.writes[-1].at - fake.writes[0].at
        assert len(fake.writes) <= 5 * spread + 2
        assert "budget" in {reason for report in seen.reports for reason in report.skips}


async def test_metadata_is_asked_for_once_per_worker(mx: Any, prometheus: FakePrometheus) -> None:
    fake, address = mx
    for n in range(1, 30):
        fake.heartbeat(fake.add(n))
    async with running(policy(address, prometheus.url)) as (_, seen):
        await until(lambda: seen.reports and seen.last.counts.matched == 29, "all known")
        await cycles(seen, 5)
    assert sorted(fake.metadata_calls) == sorted(fake.sources)


async def test_a_worker_without_metadata_is_not_asked_about_again_at_once(mx: Any, prometheus: FakePrometheus) -> None:
    fake, address = mx
    source = fake.add(1)
    fake.heartbeat(source)
    source.key = SourceKey("ffffffffffffffff", "stranger")  # listed, but not known to GetMetadata
    async with running(policy(address, prometheus.url)) as (_, seen):
        await cycles(seen, 8)
        assert seen.last.skips == {"no_identity": 1}
    assert fake.metadata_calls == [source.key]


async def test_a_worker_under_two_ranks_is_left_alone(mx: Any, prometheus: FakePrometheus) -> None:
    fake, address = mx
    one = fake.add(1)
    fake.add(2)
    fake.heartbeat(one)
    fake.other_ranks[one.key] = 5
    async with running(policy(address, prometheus.url)) as (_, seen):
        await cycles(seen, 9)
        count = write_counts(fake).get(one.key, 0)
        await beaten(fake, seen)
        await beaten(fake, seen)
        assert seen.last.skips.get("multi_rank") == 1
        counts = write_counts(fake)
        assert counts.get(one.key, 0) == count
        assert counts[SourceKey(f"{2:016x}", "w2")] >= 1


async def test_mode_observe_does_everything_but_write_and_is_a_switch(mx: Any, prometheus: FakePrometheus) -> None:
    fake, address = mx
    fake.add(1)
    writing = policy(address, prometheus.url)
    observing = dataclasses.replace(writing, mode=Mode.OBSERVE)
    async with running(observing) as (fleet, seen):
        await beaten(fake, seen)
        assert fake.writes == []
        assert seen.last.counts.would_write == 1
        fleet.apply([writing])
        await until(lambda: fake.writes, "a write: the heartbeat that was seen while observing counts")
        fleet.apply([observing])
        count = len(fake.writes)
        prometheus.answer_with(says({"10.0.0.1": 0.1}))
        await beaten(fake, seen)
        assert len(fake.writes) == count


async def test_a_policy_that_is_gone_stops_at_once_and_its_series_end(mx: Any, prometheus: FakePrometheus) -> None:
    fake, address = mx
    fake.add(1)
    one, other = policy(address, prometheus.url), policy(address, prometheus.url, name="q", models=Models(("none",)))
    async with running(one, other) as (fleet, seen):
        await beaten(fake, seen)
        fleet.apply([other])
        count = len(fake.writes)
        prometheus.answer_with(says({"10.0.0.1": 0.1}))
        await beaten(fake, seen)
        assert len(fake.writes) == count
        families = {sample.labels.get("policy") for metric in seen.metrics.collect() for sample in metric.samples}
        assert families <= {None, "q"}
        fleet.apply([])
        await cycles_end(seen)
        assert [s for m in seen.metrics.collect() for s in m.samples if "policy" in s.labels] == []


async def test_a_policy_that_goes_during_a_cycle_is_not_heard_of_again(mx: Any, prometheus: FakePrometheus) -> None:
    fake, address = mx
    fake.heartbeat(fake.add(1))
    fake.list_delay = 0.3
    async with running(policy(address, prometheus.url)) as (fleet, seen):
        await cycles(seen, 1)
        await until(lambda: len(fake.lists) >= 2, "a list under way")
        fleet.apply([policy(address, prometheus.url, name="renamed")])
        before = len(seen.of("p"))
        await until(lambda: seen.of("renamed"), "the new one")
        assert len(seen.of("p")) == before


async def cycles_end(seen: Any) -> None:
    count = -1
    while count != len(seen.cycles):
        count = len(seen.cycles)
        await asyncio.sleep(0.3)


async def test_what_is_on_record_as_unsupported_is_not_tried_again_at_once(mx: Any, prometheus: FakePrometheus) -> None:
    fake, address = mx
    fake.add(1)
    async with running(policy(address, prometheus.url), unsupported=["p"]) as (_, seen):
        await beaten(fake, seen)
        await beaten(fake, seen)
        assert fake.writes == []
        assert (seen.last.load_supported.ok, seen.last.load_supported.reason) == (False, "LoadNotStored")


async def test_the_token_goes_with_every_call_and_may_change(
    mx: Any, prometheus: FakePrometheus, tmp_path: pathlib.Path
) -> None:
    fake, address = mx
    token = tmp_path / "token"
    token.write_text("first")
    async with running(policy(address, prometheus.url, server=Server(address, token_file=str(token)))) as (_, seen):
        await cycles(seen, 2)
        assert fake.tokens[-1] == "Bearer first"
        token.write_text("second")
        await until(lambda: fake.tokens[-1] == "Bearer second", "the new token")


async def test_a_server_that_talks_and_talks_is_quoted_in_one_short_line(mx: Any) -> None:
    fake, address = mx
    fake.says = "no\nsuch " + "worker " * 1000
    server = GrpcServer(Server(address))
    try:
        write = Write(SourceKey("0", "w"), 0, 0.5, 1, 1.0, 2.0, "p")
        with pytest.raises(RefusedError, match=r"^no such worker") as refused:
            await server.write(write, 2.0)
        fake.fails = grpc.StatusCode.INTERNAL
        with pytest.raises(MxError, match=r"^INTERNAL: no such worker") as failed:
            await server.list_ready(2.0)
    finally:
        await server.close()
    for error in (refused, failed):
        assert len(str(error.value)) < 400
        assert "\n" not in str(error.value)


async def test_a_token_that_cannot_be_sent_is_said_and_never_shown(mx: Any, tmp_path: pathlib.Path) -> None:
    _, address = mx
    file = tmp_path / "token"
    file.write_text("hush-one\nhush-two")
    server = GrpcServer(Server(address, token_file=str(file)))
    try:
        with pytest.raises(MxError, match="is not one line of plain text") as caught:
            await server.list_ready(2.0)
        assert "hush" not in str(caught.value)
        file.write_text("hush")
        assert await server.list_ready(2.0) == []
    finally:
        await server.close()


async def test_a_rank_beyond_all_measure_does_not_double_the_lists(mx: Any, prometheus: FakePrometheus) -> None:
    fake, address = mx
    one = fake.add(1)
    fake.heartbeat(one)
    one.rank = 4_000_000_000
    async with running(policy(address, prometheus.url)) as (_, seen):
        await cycles(seen, 15)
        asked = len(fake.tokens) - len(fake.lists)
        await cycles(seen, 5)
        assert len(fake.tokens) - len(fake.lists) == asked


async def test_a_row_without_stamps_is_never_written(mx: Any, prometheus: FakePrometheus) -> None:
    """The first draft's numbering has the load where later servers have updated_at."""
    fake, address = mx
    fake.add(1)
    fake.wall, fake.heartbeat_every = lambda: 0.0, 0.0
    async with running(policy(address, prometheus.url)) as (_, seen):
        await beaten(fake, seen)
        assert fake.writes == []
        assert (seen.last.load_supported.ok, seen.last.load_supported.reason) == (False, "NoUpdatedAt")


# On the embedded server.


class Sources:
    """Sources of a real server: registered over gRPC, kept alive on demand."""

    def __init__(self, stub: Any) -> None:
        self._stub, self._known = stub, list[tuple[str, str]]()

    async def add(self, n: int) -> None:
        request = mx_wire.PublishMetadataRequest(
            identity=mx_wire.SourceIdentity(model_name="m", mx_version="1"),
            worker=mx_wire.WorkerMetadata(worker_rank=0, worker_grpc_endpoint=f"10.0.0.{n}:6555"),
            worker_id=f"w{n}",
        )
        answer = await self._stub.PublishMetadata(request)
        self._known.append((answer.mx_source_id, answer.worker_id))

    async def beat(self) -> None:
        for source, worker in self._known:
            request = mx_wire.UpdateStatusRequest(mx_source_id=source, worker_id=worker, worker_rank=0, status=READY)
            await self._stub.UpdateStatus(request)

    async def loads(self) -> list[float | None]:
        answer = await self._stub.ListSources(mx_wire.ListSourcesRequest(status_filter=READY))
        return [mx_wire.read_load(row) for row in answer.instances]


@contextlib.asynccontextmanager
async def embedded(folder: pathlib.Path, *arguments: str) -> AsyncIterator[tuple[str, Sources]]:
    port = free_port()
    command: list[str | pathlib.Path] = [
        pathlib.Path(sys.executable).with_name("mx-server"),
        "--listen",
        f"127.0.0.1:{port}",
        *arguments,
    ]
    with Process("mx-server", command, folder / "server.log") as process:
        process.wait_ready(lambda: "listening" in process.output)
        async with mx_wire.aio_channel(f"127.0.0.1:{port}") as channel:
            yield f"127.0.0.1:{port}", Sources(mx_wire.aio_stub(channel))


async def test_a_heartbeat_resets_the_load_and_the_next_cycle_brings_it_back(
    prometheus: FakePrometheus, tmp_path: pathlib.Path
) -> None:
    async with embedded(tmp_path) as (address, sources):
        await sources.add(1)
        async with running(policy(address, prometheus.url, source_heartbeat=1.0)) as (_, seen):
            for _ in range(3):
                await sources.beat()
                await asyncio.sleep(1.0)
            await sources.beat()
            assert await sources.loads() == [None]
            await cycles(seen, 2)
            assert [round(load or -1, 2) for load in await sources.loads()] == [0.7]


async def test_a_server_without_the_field_gets_three_canaries_at_most(
    prometheus: FakePrometheus, tmp_path: pathlib.Path
) -> None:
    async with embedded(tmp_path, "--drop-load") as (address, sources):
        for n in range(1, 12):
            await sources.add(n)
        async with running(policy(address, prometheus.url, source_heartbeat=2.0)) as (_, seen):
            for _ in range(4):
                await sources.beat()
                await asyncio.sleep(2.0)
            accepted = {"policy": "p", "result": "accepted"}
            assert seen.metrics.registry.get_sample_value("mx_operator_writes_total", accepted) in (2, 3)
            assert (seen.last.load_supported.ok, seen.last.load_supported.reason) == (False, "LoadNotStored")
