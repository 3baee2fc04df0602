"""Shared reads: never older than their asker, never more than needed, and nobody pays for another's mistake."""

from __future__ import annotations

import asyncio
import random

import pytest

from mx_server.sharing import SharedReads


class Store:
    """A counter that is read slowly."""

    def __init__(self) -> None:
        self.value, self.reads, self.most, self.now = 0, 0, 0, 0
        self.error: Exception | None = None

    async def read(self, key: str) -> int:
        self.reads += 1
        self.now += 1
        self.most = max(self.most, self.now)
        value, error = self.value, self.error
        try:
            await asyncio.sleep(0.002)
        finally:
            self.now -= 1
        if error is not None:
            raise error
        return value


@pytest.mark.parametrize("seed", range(20))
async def test_who_asks_after_a_write_sees_it(seed: int) -> None:
    store, numbers = Store(), random.Random(seed)
    shared = SharedReads(store.read)

    async def ask() -> None:
        await asyncio.sleep(numbers.random() / 50)
        store.value += 1
        written = store.value
        assert await shared.get("all") >= written

    await asyncio.gather(*(ask() for _ in range(200)))
    assert store.most <= 2
    assert store.reads <= 30, "200 askers within 20 ms, reads of 2 ms"


async def test_a_crowd_costs_two_reads_and_keys_do_not_share() -> None:
    store = Store()
    shared = SharedReads(store.read)
    await asyncio.gather(*(shared.get("all") for _ in range(100)))
    assert store.reads == 2
    await asyncio.gather(*(shared.get(str(number)) for number in range(10)))
    assert store.reads == 12


async def test_who_gives_up_does_not_take_the_answer_from_others() -> None:
    store = Store()
    shared = SharedReads(store.read)
    asking = [asyncio.create_task(shared.get("all")) for _ in range(10)]
    await asyncio.sleep(0)
    for task in asking[:5]:
        task.cancel()
    results = await asyncio.gather(*asking, return_exceptions=True)
    assert [type(result) for result in results] == [asyncio.CancelledError] * 5 + [int] * 5


async def test_an_error_reaches_those_who_asked_and_is_over_with_the_next_read() -> None:
    store = Store()
    shared = SharedReads(store.read)
    store.error = OSError("down")
    asking = [asyncio.create_task(shared.get("all")) for _ in range(3)]
    await asyncio.sleep(0.001)
    store.error = None
    results = await asyncio.gather(*asking, return_exceptions=True)
    assert isinstance(results[0], OSError)
    assert results[1:] == [0, 0], "they asked while the failing read ran, and got the next"
    assert await shared.get("all") == 0


async def test_a_failed_read_that_nobody_waits_for_is_no_warning() -> None:
    store = Store()
    shared = SharedReads(store.read)
    store.error = OSError("down")
    task = asyncio.create_task(shared.get("all"))
    await asyncio.sleep(0.001)
    task.cancel()
    await asyncio.sleep(0.02)
    assert await asyncio.gather(task, return_exceptions=True)
