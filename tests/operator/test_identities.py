"""Whom the operator asks about: those that are listed now, and nobody twice."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from mx_operator.core.model import Identity, SourceKey
from mx_operator.loop.identities import Identities
from mx_operator.mx.servers import MxServer


class Asked:
    """The part of a server that is asked, as slow as the test wants it."""

    def __init__(self) -> None:
        self.keys: list[SourceKey] = []
        self.go_on = asyncio.Event()

    async def identity(self, key: SourceKey) -> Identity | None:
        self.keys.append(key)
        await self.go_on.wait()
        return Identity("10.0.0.1")


def keys(first: int, last: int) -> list[SourceKey]:
    return [SourceKey("0123456789abcdef", f"w{n}") for n in range(first, last)]


async def test_who_is_no_longer_listed_is_not_asked_about() -> None:
    """Rows may come and go faster than their metadata can be asked for."""
    asked: Any = Asked()
    identities = Identities(lambda: cast("MxServer", asked), asyncio.get_running_loop().time)
    try:
        for start in range(0, 500, 100):
            identities.want(keys(start, start + 100))
            await asyncio.sleep(0)
        under_way = len(asked.keys)
        asked.go_on.set()
        await identities.settled(5)
        assert set(asked.keys[under_way:]) <= set(keys(400, 500))
        assert identities.known().keys() >= set(keys(400, 500))
        assert len(asked.keys) == len(set(asked.keys))
    finally:
        await identities.close()
