"""Redis that dies, restarts empty, hangs or refuses: nothing crashes, nobody is told an empty list, sources return."""

from __future__ import annotations

import asyncio
import os
import pathlib
import signal
import time
from collections.abc import AsyncIterator, Iterator

import grpc
import pytest
from redis import asyncio as aioredis

from mx_server.backends.redis import RedisBackend
from mx_server.errors import BackendUnavailable
from mx_server.settings import BadSetting, Settings
from mx_wire import GetMetadataRequest, aio_channel, aio_stub
from tests.parts import released
from tests.parts.redis import RedisServer, redis_server
from tests.server.conftest import READY, Peer, serving


def _settings(redis: RedisServer, backend_timeout: float = 0.5) -> Settings:
    return Settings(
        listen="127.0.0.1:0",
        backend="redis",
        redis_url=redis.url,
        reaper_interval=0.2,
        backend_timeout=backend_timeout,
    )


@pytest.fixture
async def peer(redis: RedisServer) -> AsyncIterator[Peer]:
    """A client of a server on a Redis of this test's own."""
    async with serving(_settings(redis)) as server, aio_channel(server.address) as channel:
        yield Peer(aio_stub(channel))


async def _unavailable(peer: Peer, source_id: str) -> None:
    """Every call says UNAVAILABLE, and none waits for long."""
    for call in (
        peer.listing(),
        peer.update(source_id),
        peer.publish(),
        peer.stub.GetMetadata(GetMetadataRequest(mx_source_id=source_id, worker_id="w1")),
    ):
        started = time.monotonic()
        with pytest.raises(grpc.aio.AioRpcError, match="redis backend") as failed:
            await call
        assert failed.value.code() is grpc.StatusCode.UNAVAILABLE
        assert time.monotonic() - started < 2


async def test_a_dead_redis_is_unavailable_and_a_restarted_empty_one_knows_nobody(
    redis: RedisServer, peer: Peer
) -> None:
    source_id = await peer.ready("w1", load=0.5)
    redis.kill()
    await _unavailable(peer, source_id)
    redis.start()
    answer = await peer.update(source_id)
    assert not answer.success
    assert "publish it first" in answer.message
    assert await peer.ids(None) == []
    await peer.ready("w1", load=0.25)
    assert await peer.loads() == {"w1": 0.25}


async def test_a_restart_between_two_calls_is_not_noticed(redis: RedisServer, peer: Peer) -> None:
    """Pooled connections died with the old process; the first call on one must not fail for that."""
    await asyncio.gather(*(peer.ready(f"w{number}") for number in range(8)))
    redis.kill()
    redis.start()
    assert await peer.ids(None) == []
    assert all(answer.success is False for answer in await asyncio.gather(*(peer.update("f" * 16) for _ in range(8))))


async def test_a_hanging_redis_is_unavailable_in_time_and_answers_do_not_get_mixed_up(
    redis: RedisServer, peer: Peer
) -> None:
    source_id = await peer.ready("w1", load=0.5)
    assert redis.process is not None
    os.kill(redis.process.pid, signal.SIGSTOP)
    try:
        await _unavailable(peer, source_id)
    finally:
        os.kill(redis.process.pid, signal.SIGCONT)
    for number in range(20):
        # A late answer of an abandoned command must not become another's.
        assert (await peer.update(source_id, load=number / 20)).success
        assert (await peer.loads())["w1"] == pytest.approx(number / 20)


async def test_callers_that_give_up_leave_no_half_read_answers_behind(redis: RedisServer, peer: Peer) -> None:
    source_id = await peer.ready("w1", load=0.5)
    for _ in range(30):
        calls = [asyncio.ensure_future(peer.listing(READY)) for _ in range(20)]
        await asyncio.sleep(0.001)
        for call in calls[::2]:
            call.cancel()
        for answer in await asyncio.gather(*calls, return_exceptions=True):
            if not isinstance(answer, BaseException):
                assert [row.worker_id for row in answer.instances] == ["w1"]
            else:
                assert isinstance(answer, asyncio.CancelledError)
    assert (await peer.update(source_id, load=0.75)).success
    assert await peer.loads() == {"w1": 0.75}


async def test_what_cannot_be_read_in_redis_harms_no_other(redis: RedisServer, peer: Peer) -> None:
    source_id = await peer.ready("good", load=0.5)
    for worker_id in ("cut state", "bad head", "no state", "bad worker"):
        await peer.ready(worker_id)
    async with aioredis.Redis.from_url(redis.url) as client:
        states, heads, workers = (f"{{mx-source-load}}:{kind}:{source_id}" for kind in ("states", "heads", "workers"))
        await client.hset(states, "cut state", b"\x01")
        await client.hset(heads, "bad head", b"\xff\xff")
        await client.hdel(states, "no state")
        await client.hset(workers, "bad worker", b"\xff\xff")
    assert sorted(await peer.ids(None)) == ["bad worker", "good"]
    assert (await peer.loads())["good"] == 0.5
    with pytest.raises(grpc.aio.AioRpcError, match="cannot be read") as failed:
        await peer.stub.GetMetadata(GetMetadataRequest(mx_source_id=source_id, worker_id="bad worker"))
    assert failed.value.code() is grpc.StatusCode.UNAVAILABLE
    for worker_id in ("no state", "cut state"):
        assert not (await peer.update(source_id, worker_id)).success
        await peer.ready(worker_id)
        assert worker_id in await peer.ids(READY), "publishing again mends it"


async def test_an_outage_is_not_a_flood_in_the_log(
    redis: RedisServer, peer: Peer, caplog: pytest.LogCaptureFixture
) -> None:
    source_id = await peer.ready("w1")
    redis.kill()
    calls = (peer.update(source_id) for _ in range(200))
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(result, grpc.aio.AioRpcError) for result in results)
    assert 1 <= sum("UpdateStatus: redis backend" in record.message for record in caplog.records) <= 10


@pytest.fixture
def full_redis(tmp_path: pathlib.Path) -> Iterator[RedisServer]:
    """A Redis that refuses writes for want of memory."""
    with redis_server(tmp_path / "full", ["--maxmemory", "1mb", "--maxmemory-policy", "noeviction"]) as server:
        yield server


async def test_a_redis_that_refuses_writes_is_unavailable(full_redis: RedisServer) -> None:
    async with serving(_settings(full_redis, 2)) as server, aio_channel(server.address) as channel:
        peer = Peer(aio_stub(channel))
        with pytest.raises(grpc.aio.AioRpcError, match=r"OOM|maxmemory") as failed:
            await peer.publish("w1", nixl_metadata=b"x" * 2_000_000)
            await peer.publish("w2")
        assert failed.value.code() is grpc.StatusCode.UNAVAILABLE
        assert len(await peer.ids(None)) <= 1, "reading still works"


async def test_metrics_tell_of_an_outage_and_of_its_end(redis: RedisServer) -> None:
    async with serving(_settings(redis)) as server, aio_channel(server.address) as channel:
        peer = Peer(aio_stub(channel))
        await peer.ready("w1")

        async def page_with(text: str) -> str:
            end = time.monotonic() + 5
            while text not in (page := server.telemetry.page().decode()):
                assert time.monotonic() < end, page
                await asyncio.sleep(0.05)
            return page

        await page_with('mx_server_sources{status="ready"} 1.0')
        redis.kill()
        page = await page_with('mx_server_backend_up{backend="redis"} 0.0')
        assert "mx_server_sources{" not in page, "an unknown number is not shown as the last one"
        redis.start()
        page = await page_with('mx_server_backend_up{backend="redis"} 1.0')
        assert 'mx_server_backend_errors_total{backend="redis",operation="scan"}' in page


@pytest.mark.released
async def test_released_sources_register_again_within_two_heartbeats_of_a_redis_that_lost_its_data(
    redis: RedisServer,
) -> None:
    heartbeat, sources = 0.5, 3
    client_module, p2p = released.module("client"), released.module("p2p_pb2")
    publisher_module = released.module("metadata.publisher")
    identity = p2p.SourceIdentity(model_name="a-model")
    async with serving(_settings(redis, 1)) as server, aio_channel(server.address) as channel:
        peer = Peer(aio_stub(channel))
        clients = [client_module.MxClient(server.address) for _ in range(sources)]
        publishers = [
            publisher_module.PublisherThread(
                client,
                worker_id=f"w{number}",
                worker_rank=number,
                publish_fn=lambda client=client, number=number: client.publish_metadata(
                    identity, p2p.WorkerMetadata(worker_rank=number), f"w{number}"
                ),
                interval_secs=heartbeat,
                source_load_provider=lambda number=number: number / 4,
            )
            for number, client in enumerate(clients)
        ]
        expected = {f"w{number}": number / 4 for number in range(sources)}

        async def all_back() -> float:
            started = time.monotonic()
            while await peer.loads() != expected:
                assert time.monotonic() - started < 10
                await asyncio.sleep(0.02)
            return time.monotonic() - started

        for publisher in publishers:
            publisher.start()
        try:
            await all_back()
            redis.kill()
            # Longer than two heartbeats: errors are no rejections, so nobody has given up its registration yet.
            await asyncio.sleep(2.5 * heartbeat)
            redis.start()
            # One interval until the first heartbeat that is refused, then two more.
            assert await all_back() < 3 * heartbeat + 0.4
        finally:
            for publisher in publishers:
                await asyncio.to_thread(publisher.stop)
            for client in clients:
                client.close()


@pytest.mark.parametrize("url", ["http://redis:6379", "redis", "redis://h:port"])
def test_a_url_that_cannot_work_is_named(url: str) -> None:
    with pytest.raises(BadSetting, match="--redis-url"):
        RedisBackend(url)


async def test_a_password_does_not_get_into_messages() -> None:
    backend = RedisBackend("redis://:s3cret@127.0.0.1:1/0", connect_timeout=0.5)
    try:
        with pytest.raises(BackendUnavailable) as failed:
            await backend.check()
        assert "s3cret" not in str(failed.value)
    finally:
        await backend.close()
