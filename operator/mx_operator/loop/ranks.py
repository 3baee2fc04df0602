"""Workers under more than one rank: one rank's heartbeat must not license writes for another.

A list shows one row per worker, whatever ranks it has. So now and then each rank is listed by itself, and a worker
that turns up under another rank than the plain list's is left alone from then on. Publishers of today use one rank
per worker; the check costs one more list in ten seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from mx_operator.core.ledgers import Ledger
from mx_operator.core.model import Listing, Row
from mx_operator.mx.errors import MxError
from mx_operator.mx.servers import MxServer

#: Ranks that are looked at even where no row has them.
_FIRST_RANKS: Final = range(8)
#: More are not looked at in one round, whatever rows say.
_MOST_RANKS: Final = 256
_EVERY: Final = 10.0
_DEADLINE: Final = 2.0


class RankProbe:
    """Asks for one rank at a time: all of them in the first cycles, then one in ten seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._next_at = float("-inf")
        self._left: list[int] = []
        self._rounds = 0

    async def probe(self, server: MxServer, listing: Listing, ledger: Ledger) -> None:
        """Look at one rank, if it is time."""
        if self._rounds > 1 and self._now() < self._next_at:
            return
        self._next_at = self._now() + _EVERY
        ranks = {row.key: row.worker_rank for row in listing.rows}
        if not self._left:
            self._left = sorted({*_FIRST_RANKS, *ranks.values()}, reverse=True)[-_MOST_RANKS:]
            self._rounds += 1
        rank = self._left[-1]
        try:
            rows = await server.list_ready(_DEADLINE, rank)
        except MxError:
            return  # the next one will do
        self._left.pop()
        other = [row.key for row in rows if ranks.get(row.key, rank) != rank]
        if other:
            ledger.found_under_other_ranks(other)

    def listed_twice(self, rows: Iterable[Row], ledger: Ledger) -> None:
        """A server that lists each rank by itself says it at once."""
        seen: dict[object, int] = {}
        other = [row.key for row in rows if seen.setdefault(row.key, row.worker_rank) != row.worker_rank]
        if other:
            ledger.found_under_other_ranks(other)
