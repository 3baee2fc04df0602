"""One MX endpoint's loop: list and ask, decide, write, report; every two seconds, or slower where that is kinder.

A cycle never raises and never waits for anybody without a deadline. What it does not know it does not write.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import random
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, Protocol

from mx_operator.core import gates, pacing
from mx_operator.core.ledgers import Ledger
from mx_operator.core.model import Identity, Listing, Outcome, Result, Row, SourceKey, Write
from mx_operator.core.planning import Plan, Task
from mx_operator.core.reports import PolicyReport
from mx_operator.core.rules import WRITE_BUDGET, Rules, strictest
from mx_operator.loop import reporting
from mx_operator.loop.identities import Identities
from mx_operator.loop.queries import Fetched, MakeClient, SignalKey, Signals, answers
from mx_operator.loop.ranks import RankProbe
from mx_operator.loop.writing import Sender
from mx_operator.mx.errors import MxError
from mx_operator.mx.servers import MxServer
from mx_operator.policies.labels import Join
from mx_operator.policies.spec import Mode, Server, SourceLoadPolicy
from mx_operator.ports import StatusSink

_LOG: Final = logging.getLogger(__name__)

LIST_DEADLINE: Final = 5.0
#: A list that is here waits this long for queries that are not.
_QUERY_PATIENCE: Final = 1.0
#: After so many lists without an answer the connection is made anew.
_RECONNECT_AFTER: Final = 3


@dataclasses.dataclass(frozen=True, slots=True)
class EndpointKey:
    """What policies must have in common to be one loop: where they write, how, and as whom."""

    server: Server

    @staticmethod
    def of(policy: SourceLoadPolicy) -> EndpointKey:
        """A policy's endpoint; its write budget is not part of it."""
        return EndpointKey(dataclasses.replace(policy.server, max_writes_per_second=0.0))


@dataclasses.dataclass(frozen=True, slots=True)
class Cycle:
    """What a cycle saw and did, for everybody who shows it.

    Attributes:
        policies: Of this endpoint, in this cycle.
        started: Monotonic seconds.
        ended: Monotonic seconds.
        list_error: Why there was no list; None where there was one.
        rows: Of the list; empty where there was none.
        plan: None where there was no list.
        outcomes: Of every write.
        fetched: The answers used, by signal.
        identities: Of the workers, as far as known.
        ledger: As it stands after the cycle.
        rules: Gone by.
    """

    policies: tuple[SourceLoadPolicy, ...]
    started: float
    ended: float
    list_error: MxError | None
    rows: tuple[Row, ...]
    plan: Plan | None
    outcomes: tuple[Outcome, ...]
    fetched: Mapping[SignalKey, Fetched]
    identities: Mapping[SourceKey, Identity]
    ledger: Ledger
    rules: Rules


class CycleObserver(Protocol):
    """Whoever wants to see every cycle: metrics, the table of `mx-operator plan`."""

    def saw(self, endpoint: EndpointKey, cycle: Cycle, reports: Sequence[PolicyReport]) -> None:
        """Take in a cycle that has just ended; returns at once, never raises."""

    def left(self, endpoint: EndpointKey) -> None:
        """The endpoint is no longer served: forget it."""


class Endpoint:
    """The loop of one endpoint."""

    def __init__(
        self,
        key: EndpointKey,
        server: MxServer,
        signals: MakeClient,
        sink: StatusSink,
        observer: CycleObserver,
        *,
        rnd: random.Random | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """Make it; `run` runs it.

        Args:
            key: Which endpoint.
            server: The seam to it.
            signals: Makes the seam to a signal.
            sink: Gets each policy's report.
            observer: Gets each cycle.
            rnd: For nonces.
            wall: This machine's wall clock, for display.
        """
        self.key = key
        self._server, self._sink, self._observer, self._wall = server, sink, observer, wall
        self._now = asyncio.get_running_loop().time
        self._signals = Signals(signals, self._now)
        self._identities = Identities(lambda: self._server, self._now)
        self._ranks = RankProbe(self._now)
        self._sender = Sender(self._now)
        self._policies: tuple[SourceLoadPolicy, ...] = ()
        self._ledger = Ledger(rnd or random.SystemRandom())
        self._failed_lists = 0
        self._list_took = 0.0
        self.last_good_list = float("-inf")
        self.ticked = self._now()
        self.interval = 2.0

    def use(self, policies: Sequence[SourceLoadPolicy], unsupported: Collection[str] = ()) -> None:
        """Serve exactly these policies from now on; a write under way for another one is not begun any more."""
        if not self._policies and any(policy.name in unsupported for policy in policies):
            self._ledger = Ledger(random.SystemRandom(), gates.closed(self._now()))
        self._policies = tuple(policies)

    async def run(self) -> None:
        """Run until cancelled."""
        try:
            while True:
                started = self._now()
                await self._guarded()
                await self._signals.any_late(started + self.interval - self._now())
                await asyncio.sleep(max(0.0, started + min(1.0, self.interval) - self._now()))
        finally:
            await self.close()

    async def _guarded(self) -> None:
        try:
            await self.cycle()
        except Exception as error:  # noqa: BLE001 (a defect must be loud, and must not end the loop)
            _LOG.exception("%s: a cycle failed", self.key.server.address)
            for policy in self._policies:
                self._sink.publish(reporting.unusable(policy, "InternalError", repr(error), self._wall()))
        self.ticked = self._now()

    async def known(self, seconds: float) -> None:
        """Wait until every worker listed so far was asked who it is, but no longer than this."""
        await self._identities.settled(seconds)

    async def close(self) -> None:
        """Let go of everything; `run` does it itself."""
        await self._identities.close()
        await self._signals.close()
        await self._server.close()
        self._observer.left(self.key)

    async def cycle(self) -> Cycle:
        """Run one cycle."""
        started, policies = self._now(), self._policies
        rules = strictest(policies)
        await self._signals.use(policies)
        self._signals.start()
        listing, error = await self._list()
        await self._signals.wait(_QUERY_PATIENCE)
        taken = self._signals.take()
        plan, outcomes = None, []
        if listing is not None:
            plan = await self._decided(listing, policies, taken, rules)
            outcomes = await self._written(plan, listing, rules)
            await self._ranks.probe(self._server, listing, self._ledger)
        cycle = Cycle(
            policies,
            started,
            self._now(),
            error,
            listing.rows if listing else (),
            plan,
            tuple(outcomes),
            taken,
            self._identities.known(),
            self._ledger,
            rules,
        )
        self.interval = pacing.interval(rules, self._list_took, self._signals.slowest())
        self._report(cycle)
        return cycle

    async def _list(self) -> tuple[Listing | None, MxError | None]:
        sent_at = self._now()
        try:
            rows = await self._server.list_ready(LIST_DEADLINE)
        except MxError as error:
            await self._not_listed()
            return None, error
        received_at = self._now()
        self._failed_lists, self._list_took, self.last_good_list = 0, received_at - sent_at, received_at
        unique = {row.key: row for row in rows}
        if len(unique) < len(rows):
            self._ranks.listed_twice(rows, self._ledger)
        if not unique:
            # An empty list is what servers say when their backend failed: it proves nothing.
            return None, None
        return Listing(sent_at, received_at, tuple(unique.values())), None

    async def _not_listed(self) -> None:
        self._failed_lists += 1
        if self._failed_lists % _RECONNECT_AFTER == 0:
            await self._server.reconnect()

    async def _decided(
        self,
        listing: Listing,
        policies: Sequence[SourceLoadPolicy],
        taken: Mapping[SignalKey, Fetched],
        rules: Rules,
    ) -> Plan:
        now = self._now()
        if any(signal.join is not Join.SOURCE for policy in policies for signal in policy.signals):
            self._identities.want(row.key for row in listing.rows)
        tasks = [Task(policy, answers(policy, taken, now)) for policy in policies]
        plan = self._ledger.decide(listing, self._identities.known(), tasks, rules, now)
        self._identities.keep(self._ledger.memory.rows.keys())
        return plan

    async def _written(self, plan: Plan, listing: Listing, rules: Rules) -> list[Outcome]:
        if not plan.writes:
            self._ledger.settle(())
            return []
        until = listing.received_at + WRITE_BUDGET
        per_second = self._ledger.pace.per_second(rules)
        outcomes = await self._sender.send(self._server, plan.writes, per_second, until, self._may_still)
        self._ledger.settle(outcomes)
        for outcome in outcomes:
            if outcome.detail:
                fix = "; allow this operator's account on the server" if outcome.result is Result.DENIED else ""
                words = (self.key.server.address, outcome.result.value, outcome.write.key.worker_id)
                _LOG.warning("%s: a write was %s (worker %s): %s%s", *words, outcome.detail, fix)
        return outcomes

    def _may_still(self, write: Write) -> bool:
        return any(policy.name == write.policy and policy.mode is Mode.WRITE for policy in self._policies)

    def _report(self, cycle: Cycle) -> None:
        served = {policy.name for policy in self._policies}  # who has gone since the cycle began is not heard of again
        reports = [report for report in reporting.reports(cycle, self._wall()) if report.policy in served]
        for report in reports:
            self._sink.publish(report)
        self._observer.saw(self.key, cycle, reports)
