"""One source, one MX server and any number of writers on an event-driven virtual clock.

The writers run the code that ships (`Ledger`: observe, plan, settle); the rules that must fail run beside it. A run
of 800 virtual seconds takes some milliseconds, because nothing happens between events.
"""

from __future__ import annotations

import bisect
import dataclasses
import heapq
import itertools
import math
import random
from collections.abc import Callable, Iterator

from mx_operator.core import joins
from mx_operator.core.ledgers import Ledger
from mx_operator.core.marks import is_marked, mark, nonce_of
from mx_operator.core.model import Identity, Listing, Outcome, Result, Row, Sample, SourceKey, Write
from mx_operator.core.planning import Task
from mx_operator.core.rules import GRACE, Rules
from mx_operator.core.targets import Answer
from mx_operator.policies.spec import Combine, Prometheus, Server, Signal, SourceLoadPolicy

KEY = SourceKey("0123456789abcdef", "worker-1")
HOST = "10.0.0.7"
SIGNAL = Signal("load", "mx_source_load")
WARM = 60.0


@dataclasses.dataclass(frozen=True)
class Case:
    """A server's personality, a fault, and how the writers go about it. Seconds, and shares in [0, 1]."""

    protocol: str = "window"  # none, naive, three: the rules that must fail
    backend: str = "redis"  # memory, redis, kubernetes: what an older stamp does
    presence: bool = True  # without: a load that is not there reads 0
    keeps_load: bool = False  # a heartbeat without a load leaves the stored one
    own_load: float | None = None  # heartbeats carry it (0.0 is what the first clients send without a provider)
    draft: bool = False  # rows carry no updated_at
    drops_writes: float = 0.0  # share of writes that reach a replica without the field
    drops_lists: float = 0.0  # share of lists that one answers
    empty_lists: float = 0.0
    stale_lists: float = 0.0  # share of lists that are 20 s old
    skew: float = 0.0  # the writers' replica stamps ahead by this much
    timeout: float = 90.0
    reaper: float = 30.0
    heartbeat: float = 30.0  # the source's
    source_heartbeat: float = 30.0  # the policy's
    fault: str = "hang"  # hang, crash, latch (one STALE, then silence), race (STALE between list and write)
    load: str = "jump"  # jump: every 5 to 60 s; every25; restless: all the time; flip: 0 or 1; still
    poll: float = 2.0
    scrape: float = 5.0
    average: float = 3.0
    writers: int = 1
    restart_every: float = 0.0
    latency: float = 0.1  # mean of a write's exponential latency
    dies_after: float = 300.0
    cut: float = 0.0  # the network is cut this long when the source dies: writes are held, lists fail

    @property
    def policy(self) -> SourceLoadPolicy:
        return SourceLoadPolicy(
            "p",
            Server("mx:8001"),
            Prometheus("http://prometheus"),
            (SIGNAL,),
            interval=self.poll,
            source_heartbeat=self.source_heartbeat,
            combine=Combine.MAX,
        )

    @property
    def bound(self) -> float:
        """How long a dead source may stay selectable."""
        held = max(0.0, self.cut)
        return self.timeout + 0.9 * self.source_heartbeat + GRACE + abs(self.skew) + held


@dataclasses.dataclass
class Stored:
    """What the server has of the source."""

    ready: bool = True
    load: float | None = None
    updated_at: float = 0.0
    writes_since_beat: int = 0


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What a run showed.

    Attributes:
        gone: Seconds from death until not selectable for good; infinite if never.
        true: Share of the living time in which the stored load was within 0.15 of the truth.
        lags: Seconds from each jump to its being stored.
        writes: How many were sent.
    """

    gone: float
    true: float
    lags: tuple[float, ...]
    writes: int


class Truth:
    """The load, its jumps, and its average over the exporter's window."""

    def __init__(self, case: Case, rnd: random.Random) -> None:
        self._case, self._rnd = case, rnd
        self._times, self._levels, self._integral = [0.0], [rnd.random()], [0.0]

    @property
    def level(self) -> float:
        return self._levels[-1]

    def jumps(self) -> float:
        """Seconds to the next jump; jumps now, except for the first call of a still load."""
        rnd = self._rnd
        match self._case.load:
            case "jump" | "every25":
                self._next = rnd.choice([rnd.random() * 0.3, 0.7 + rnd.random() * 0.3])
                return 5 + rnd.expovariate(1 / 20)
            case "restless":
                self._next = rnd.random()
                return rnd.uniform(1, 9)
            case "flip":
                self._next = 1.0 - round(self.level)
                return rnd.uniform(1, 9)
        self._next = self.level
        return math.inf

    def jump(self, now: float) -> float:
        wait = self.jumps()
        self._integral.append(self._until(now))
        self._times.append(now)
        self._levels.append(self._next)
        return wait

    def _until(self, now: float) -> float:
        at = bisect.bisect_right(self._times, now) - 1
        return self._integral[at] + self._levels[at] * (now - self._times[at])

    def average(self, now: float) -> float:
        start = max(0.0, now - self._case.average)
        return (
            self.level if now <= start else min(1.0, max(0.0, (self._until(now) - self._until(start)) / (now - start)))
        )


class World:
    """A run."""

    def __init__(self, case: Case, seed: int) -> None:
        # The operators' randomness is not the world's: two worlds of one seed differ only by what operators do.
        self.case, self.rnd, self.ops, self.now = case, random.Random(seed), random.Random(f"operators {seed}"), 0.0
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self.row, self.truth = Stored(), Truth(case, self.rnd)
        self.dies = case.dies_after + self.rnd.random() * case.heartbeat
        self.past: list[tuple[float, float | None, float]] = []
        self.scraped, self.scraped_at = self.truth.level, 0.0
        self.answer: Answer | None = None
        self.gone: float | None = None
        self.waiting: tuple[float, float] | None = None
        self.lags: list[float] = []
        self.seen = self.good = self.writes = 0
        self.race_armed = False
        self.watch: Callable[[Operator, Write], None] = lambda _operator, _write: None
        self.operators: list[Operator] = []

    def at(self, when: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (when, next(self._order), what))

    def after(self, wait: float, what: Callable[[], None]) -> None:
        self.at(self.now + wait, what)

    @property
    def alive(self) -> bool:
        return self.now < self.dies

    @property
    def cut(self) -> bool:
        return self.dies - 1 <= self.now < self.dies - 1 + self.case.cut

    @property
    def selectable(self) -> bool:
        return self.row.ready and self.now - self.row.updated_at <= self.case.timeout

    def run(self) -> Verdict:
        case, rnd = self.case, self.rnd
        self.after(rnd.random() * case.heartbeat, self._heartbeat)
        self.after(rnd.random() * case.scrape, self._scrape)
        if case.load != "still":
            self.after(0.0, self._jump)
        self.after(rnd.random() * case.reaper, self._reap)
        self.at(WARM, self._look)
        self.at(self.dies, self._die)
        for _ in range(case.writers if case.protocol != "none" else 0):
            self.operators.append(Operator(self))
            self.operators[-1].start()
        end = self.dies + self.case.bound + 120
        while self._queue and self.now < end:
            self.now, _, what = heapq.heappop(self._queue)
            what()
            if not self.alive and self._over():
                break
        gone = math.inf if self.selectable else (self.gone or 0.0)
        return Verdict(gone, self.good / max(1, self.seen), tuple(self.lags), self.writes)

    def _over(self) -> bool:
        """Dead, and nothing can bring it back: no list shows it and no write is under way."""
        if self.selectable:
            self.gone = None
            return False
        if self.gone is None:
            self.gone = self.now - self.dies
        return self.now > self.dies + self.gone + 10 + self.case.cut

    # The source.

    def _heartbeat(self) -> None:
        if not self.alive:
            return
        self.after(self.case.heartbeat + self.rnd.uniform(-0.2, 0.2), self._heartbeat)
        load = self.case.own_load
        if load is None and self.case.keeps_load:
            load = self.row.load
        self._store(load, self.now)
        self.row.writes_since_beat = 0

    def _die(self) -> None:
        if self.case.fault == "latch":
            self.row.ready, self.row.updated_at, self.row.load = False, self.now, None
        if self.case.fault == "race":
            self.race_armed = True
            self.after(2 * self.case.poll + 1, self._demote)

    def _demote(self) -> None:
        """STALE, said once: by `race` exactly between an operator's list and its write."""
        if self.race_armed:
            self.race_armed = False
            self.row.ready, self.row.updated_at, self.row.load = False, self.now, None

    def _jump(self) -> None:
        self.after(self.truth.jump(self.now), self._jump)
        level = self.truth.level
        if WARM < self.now < self.dies - 40 and abs(level - (self.row.load or 0.0)) > 0.3:
            self.waiting = (self.now, level)

    def _look(self) -> None:
        """Twice a second: is what is stored true?"""
        if not self.alive:
            return
        self.after(0.5, self._look)
        self.seen += 1
        self.good += abs((self.row.load or 0.0) - self.truth.average(self.now)) <= 0.15

    # Prometheus.

    def _scrape(self) -> None:
        self.after(self.case.scrape, self._scrape)
        if self.alive or self.case.fault != "crash":
            self.scraped, self.scraped_at = self.truth.average(self.now), self.now
            self.answer = None

    def answered(self) -> Answer:
        """An instant query: after a crash the series end with the first failed scrape."""
        age = self.now - self.scraped_at
        if age > self.case.scrape + 0.001:
            return Answer(joins.index(SIGNAL, ()))
        if self.answer is None:
            self.answer = Answer(joins.index(SIGNAL, [Sample({"k8s_pod_ip": HOST}, self.scraped, age)]))
        return self.answer

    # The server.

    def _reap(self) -> None:
        self.after(self.case.reaper, self._reap)
        if self.row.ready and self.now - self.row.updated_at > self.case.timeout:
            self.row.ready, self.row.load = False, None

    def _store(self, load: float | None, stamp: float) -> None:
        if self.case.backend == "redis" and stamp < self.row.updated_at:
            return  # its Lua drops older stamps in silence
        self.row.ready, self.row.load, self.row.updated_at = True, load, stamp
        if self.case.stale_lists:
            self.past.append((self.now, load, stamp))
        if self.waiting and abs((load or 0.0) - self.waiting[1]) <= 0.15:
            self.lags.append(self.now - self.waiting[0])
            self.waiting = None

    def store_write(self, load: float) -> None:
        kept = None if self.ops.random() < self.case.drops_writes else load
        self.row.writes_since_beat += 1
        self._store(kept, self.now + self.case.skew)

    def listed(self) -> tuple[Row, ...]:
        """ListSources(READY) now."""
        case, rnd = self.case, self.ops
        if self.cut or not self.selectable or rnd.random() < case.empty_lists:
            return ()
        load, stamp = self.row.load, self.row.updated_at
        if case.stale_lists and rnd.random() < case.stale_lists:
            load, stamp = self._as_it_was(self.now - 20.0)
        if rnd.random() < case.drops_lists:
            load = None
        if load is None and not case.presence:
            load = 0.0
        return (Row(KEY, 0, "m", 0 if case.draft else 1 + round((1000 + stamp) * 1000), load),)

    def _as_it_was(self, then: float) -> tuple[float | None, float]:
        older = [entry for entry in self.past if entry[0] <= then]
        self.past = [*older[-1:], *(entry for entry in self.past if entry[0] > then)]
        _, load, stamp = self.past[0] if self.past else (0.0, self.row.load, self.row.updated_at)
        return load, stamp


class Operator:
    """One process: lists, decides, writes, forgets everything when it restarts."""

    def __init__(self, world: World) -> None:
        self.world, self.case = world, world.case
        self.rules = Rules(self.case.source_heartbeat, self.case.poll)
        self.life, self.started = 0, 0.0
        self.ledger = Ledger(world.ops)

    def start(self) -> None:
        self.world.after(self.world.ops.random() * self.case.poll, self._cycles(0))
        if self.case.restart_every:
            self.world.after(self.case.restart_every * (1 + self.world.ops.random()), self._restart)

    def _restart(self) -> None:
        self.world.after(self.case.restart_every, self._restart)
        self.life, self.started = self.life + 1, self.world.now
        self.ledger = Ledger(self.world.ops)
        self.world.after(self.world.ops.random() * self.case.poll, self._cycles(self.life))

    def _cycles(self, life: int) -> Callable[[], None]:
        def cycle() -> None:
            if self.life == life:
                self._cycle(cycle)

        return cycle

    def _cycle(self, again: Callable[[], None]) -> None:
        world, sent_at = self.world, self.world.now
        rows = world.listed()
        writes = tuple(self._decide(rows, sent_at)) if rows else ()
        ended = [self._send(write) for write in writes]
        if writes:
            life = self.life
            outcomes = ended
            latest = max(outcome.ended_at for outcome in outcomes)

            def settle() -> None:
                if self.life == life:
                    self.ledger.settle(outcomes)
                    again_at = max(sent_at + self.case.poll, world.now + 0.001)
                    world.at(again_at, again)

            world.at(latest, settle)
        else:
            world.after(self.case.poll, again)

    def _decide(self, rows: tuple[Row, ...], sent_at: float) -> Iterator[Write]:
        if self.case.protocol != "window":
            yield from self._careless(rows[0])
            return
        world = self.world
        tasks = (Task(self.case.policy, (world.answered(),)),)
        plan = self.ledger.decide(Listing(sent_at, world.now, rows), IDENTITIES, tasks, self.rules, world.now)
        yield from plan.writes

    def _careless(self, row: Row) -> Iterator[Write]:
        """The rules that must fail: naive writes whatever differs, three at most three times per heartbeat."""
        answer = self.world.answered()
        assert answer.index is not None
        reading = joins.find(answer.index, row, IDENTITIES[KEY])
        if isinstance(reading, joins.Absent) or abs(reading.value - (row.load or 0.0)) <= 0.05:
            return
        stored = self.world.row
        spent = stored.writes_since_beat >= 3 or self.world.now - stored.updated_at < 10
        if self.case.protocol == "three" and is_marked(row.load) and spent:
            return
        nonce = self.world.ops.choice([n for n in range(256) if n != nonce_of(row.load)])
        now = self.world.now
        yield Write(KEY, 0, mark(reading.value, nonce), nonce, now + 27, now + 29, "p")

    def _send(self, write: Write) -> Outcome:
        world, now = self.world, self.world.now
        world.writes += 1
        world.watch(self, write)
        lands = now + 0.02 + world.ops.expovariate(1 / self.case.latency)
        if self.case.cut and world.dies - 1 - 2 * self.case.poll <= now:  # held by the network until it is back
            lands = max(lands, world.dies - 1 + self.case.cut)
        if world.race_armed:
            world.at(now + 0.001, world._demote)
        world.at(lands, lambda: world.store_write(write.load))
        deadline = min(now + GRACE, max(now, write.answer_before))
        if lands > deadline:
            return Outcome(write, Result.FAILED, now, deadline)
        return Outcome(write, Result.ACCEPTED, now, lands)


IDENTITIES = {KEY: Identity(host=HOST, device=0)}


def run(case: Case, seed: int) -> Verdict:
    """One seeded run."""
    return World(case, seed).run()
