"""One endpoint's books: the only place where what is known changes, in the one right order.

The loop and the simulation both run a cycle as `decide`, then send what it says, then `settle`.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from mx_operator.core import clocks, heartbeats, planning
from mx_operator.core.clocks import Clocks
from mx_operator.core.gates import UNTRIED, Gate
from mx_operator.core.memory import NEVER, Memory
from mx_operator.core.model import Identity, Listing, Outcome, Result, SourceKey
from mx_operator.core.pacing import Pace
from mx_operator.core.planning import Limits, Plan, Task
from mx_operator.core.rules import Rules

#: Seconds without writes after the server refused our credentials.
DENIED_PAUSE: Final = 60.0


class Ledger:
    """What one process knows of one endpoint, and what follows from it."""

    def __init__(self, rnd: random.Random, gate: Gate = UNTRIED) -> None:
        """Open the books.

        Args:
            rnd: For nonces.
            gate: `gates.closed(now)` where it is on record that this server does not store loads.
        """
        self._rnd = rnd
        self.memory = Memory(gate=gate)
        self.pace = Pace()
        self.clocks = Clocks()
        self.denied_until = NEVER

    def decide(
        self,
        listing: Listing,
        identities: Mapping[SourceKey, Identity],
        tasks: Sequence[Task],
        rules: Rules,
        now: float,
    ) -> Plan:
        """Take in a list that was not empty, and decide the cycle; arguments as of `planning.plan`."""
        before, self.memory = self.memory, heartbeats.observe(self.memory, listing, rules)
        self.clocks = clocks.compare(self.clocks, listing, before, self.memory.rows)
        limits = Limits(self.pace.budget(rules), denied=now < self.denied_until)
        plan = planning.plan(listing, self.memory, identities, tasks, rules, limits, now, self._rnd)
        self.memory = heartbeats.with_measured(self.memory, plan.measured, now)
        return plan

    def settle(self, outcomes: Sequence[Outcome]) -> None:
        """Take in how every write of the cycle ended; those that were not sent too."""
        self.memory = heartbeats.settle(self.memory, outcomes)
        took = [outcome.ended_at - outcome.sent_at for outcome in outcomes if outcome.result is not Result.UNSENT]
        self.pace = self.pace.after(statistics.median(took) if took else None)
        denied = [outcome.ended_at for outcome in outcomes if outcome.result is Result.DENIED]
        if denied:
            self.denied_until = max(denied) + DENIED_PAUSE

    def found_under_other_ranks(self, keys: Iterable[SourceKey]) -> None:
        """Take in which workers a listing by rank showed under another rank than the plain list."""
        self.memory = heartbeats.with_many_ranks(self.memory, keys)
