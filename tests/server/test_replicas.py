"""Any number of servers on one store answer the same, and what targets make of the answers is the same too."""

from __future__ import annotations

import asyncio
import random
import sys

from mx_wire import SourceIdentity
from tests.server.conftest import READY, STALE, Store

_RANK = """
import asyncio, sys
from mx_selector import Target, rank
from mx_wire import ListSourcesRequest, aio_channel, aio_stub

async def main(address):
    async with aio_channel(address) as channel:
        listed = await aio_stub(channel).ListSources(ListSourcesRequest(status_filter=2))
    for policy in ("load_aware", "rendezvous_hash", "headroom"):
        for number in range(20):
            target = Target(model_name="a-model", worker_id=f"t{number}", worker_rank=0)
            print(policy, number, *(row.worker_id for row in rank(list(listed.instances), target, policy)))

asyncio.run(main(sys.argv[1]))
"""


async def _ranked(address: str) -> str:
    """What a selector in a process of its own makes of a server's listing."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _RANK, address, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    output, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    return output.decode()


async def test_two_servers_list_the_same_and_two_selectors_rank_the_same(shared_store: Store) -> None:
    numbers = random.Random(7)
    async with shared_store.server() as (first, one), shared_store.server() as (second, two):
        peers = [one, two]
        for number in range(40):
            source_id = await peers[number % 2].publish(f"w{number}")
            load = None if number % 5 == 0 else numbers.random()
            status = STALE if number % 13 == 0 else READY
            assert (await peers[(number + 1) % 2].update(source_id, f"w{number}", 0, status, load)).success
        for wanted in (
            {},
            {"limit": 7},
            {"model_name_filter": "a-model"},
            {"identity": SourceIdentity(model_name="x")},
        ):
            for state in (READY, STALE, None):
                answers = [await peer.listing(state, **wanted) for peer in peers]
                assert answers[0] == answers[1]
        orders = await asyncio.gather(_ranked(first.address), _ranked(second.address))
        assert orders[0] == orders[1]
        assert len(orders[0].splitlines()) == 60
        assert len({tuple(line.split()[2:]) for line in orders[0].splitlines()}) > 20, "targets do differ"


async def test_a_write_through_one_replica_is_seen_through_the_other_at_once(shared_store: Store) -> None:
    async with shared_store.peer() as one, shared_store.peer() as two:
        source_id = await one.ready("w1", load=0.5)
        assert await two.loads() == {"w1": 0.5}
        await two.update(source_id, "w1", status=STALE)
        assert await one.ids(READY) == []
        await one.publish("w1", 4)
        assert not (await two.update(source_id, "w1", 0)).success
        assert (await two.update(source_id, "w1", 4)).success


async def test_concurrent_heartbeats_through_two_replicas_lose_nothing(shared_store: Store) -> None:
    async with shared_store.peer() as one, shared_store.peer() as two:
        source_id = await one.publish("w0")
        await asyncio.gather(*(one.publish(f"w{number}", number) for number in range(1, 20)))
        for step in range(1, 6):
            calls = [
                (one, two)[(number + step) % 2].update(source_id, f"w{number}", number, READY, step / 8)
                for number in range(20)
            ]
            assert all(answer.success for answer in await asyncio.gather(*calls))
            for peer in (one, two):
                assert await peer.loads() == {f"w{number}": step / 8 for number in range(20)}


async def test_every_replica_may_scan(shared_store: Store) -> None:
    changes = {"heartbeat_timeout": 0.4, "reaper_interval": 0.1, "gc_timeout": 0.8}
    async with shared_store.peer(**changes) as one, shared_store.peer(**changes) as two:
        source_id = await one.ready("alive", load=0.5)
        await two.ready("silent", load=0.5)
        seen: set[tuple[str, ...]] = set()
        for _ in range(20):
            await asyncio.sleep(0.1)
            assert (await one.update(source_id, "alive", load=0.5)).success
            seen.add(tuple(sorted(await two.ids(STALE))))
            assert await one.ids(READY, limit=1) == ["alive"]
        assert ("silent",) in seen
        assert await one.ids(None) == ["alive"]
