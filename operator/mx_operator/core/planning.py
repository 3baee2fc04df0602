"""`plan`: which sources are written in this cycle, with what, and for every other one why not.

Called once a cycle by the loop, with what the seams brought in, after `heartbeats.observe` took in the list.
"""

from __future__ import annotations

import collections
import dataclasses
import fnmatch
import math
import random
from collections.abc import Mapping, Sequence
from typing import Final

from mx_operator.core import gates
from mx_operator.core.marks import NONCES, is_marked, mark, nonce_of
from mx_operator.core.memory import NEVER, Memory, RowMemory
from mx_operator.core.model import Identity, Listing, Row, SourceKey, Write
from mx_operator.core.rules import GRACE, Rules
from mx_operator.core.targets import NEUTRAL, Answer, Measured, State, difference, measure, target, worth_writing
from mx_operator.policies.spec import Mode, Models, SourceLoadPolicy, Unmeasured, Writer

#: Reasons why a source is not written, beside those of joins and targets.
UNCHANGED: Final = "unchanged"
NO_HEARTBEAT: Final = "no_heartbeat_yet"
WINDOW_CLOSED: Final = "window_closed"
NO_STAMPS: Final = "no_updated_at"
GATE: Final = "load_not_supported"
CANARY: Final = "canary"
OBSERVE: Final = "observe"
BUDGET: Final = "budget"
MULTI_RANK: Final = "multi_rank"
CONFLICT: Final = "conflict"
BLOCKED: Final = "writes_denied"


@dataclasses.dataclass(frozen=True, slots=True)
class Task:
    """A policy with what its signals answered in this cycle, in the order of its signals."""

    policy: SourceLoadPolicy
    answers: tuple[Answer, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Decision:
    """One source, one policy, one cycle.

    Attributes:
        row: As listed.
        policy: Name of the policy that has it.
        state: What is known of it.
        reason: Why it is not written; the write's reason where it is.
        write: Whether it is.
        measured: The blended reading, in [0, 1].
        age: Of the sample behind it.
        target: What it should have stored.
        clamped: The reading was outside [0, 1].
    """

    row: Row
    policy: str
    state: State
    reason: str
    write: bool = False
    measured: float | None = None
    age: float | None = None
    target: float | None = None
    clamped: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """A cycle's decisions.

    Attributes:
        writes: Largest difference first.
        decisions: One for each listed source that any policy means, of the policy that has it.
        measured: Sources that have a fresh reading.
        conflicts: By policy, the sources that it means and another with precedence has; numbers only, because fifty
            policies for everything would be fifty decisions for each source.
    """

    writes: tuple[Write, ...]
    decisions: tuple[Decision, ...]
    measured: tuple[SourceKey, ...]
    conflicts: Mapping[str, int] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True)
class Limits:
    """What holds writes back beside the window.

    Attributes:
        budget: Most writes of this cycle.
        denied: The server refused our credentials not long ago.
    """

    budget: int
    denied: bool = False


def plan(
    listing: Listing,
    memory: Memory,
    identities: Mapping[SourceKey, Identity],
    tasks: Sequence[Task],
    rules: Rules,
    limits: Limits,
    now: float,
    rnd: random.Random,
) -> Plan:
    """Decide a cycle.

    Args:
        listing: This cycle's list; `memory` has observed it.
        memory: Of this endpoint.
        identities: Of its workers, as far as known.
        tasks: All policies for this endpoint.
        rules: `rules.strictest` of them.
        limits: What else holds writes back.
        now: Monotonic seconds.
        rnd: For nonces.
    """
    owners = Owners([task.policy for task in tasks])
    decisions: list[Decision] = []
    wants: list[tuple[float, int, Want]] = []
    measured: list[SourceKey] = []
    conflicts: collections.Counter[int] = collections.Counter()
    for row in listing.rows:
        owner, others = owners.of(row.model_name)
        if owner is None:
            continue
        conflicts.update(others)
        task = tasks[owner]
        known = measure(task.answers, row, identities.get(row.key), task.policy.stale_after)
        if known.value is not None:
            measured.append(row.key)
        want, reason = _want(row, memory, task.policy, known, rules, now)
        if want is None:
            decisions.append(_decision(row, task.policy, known, reason, _wanted(memory, row, task.policy, known)))
        else:
            wants.append((-difference(want.load, row.load), len(wants), want))
    wants.sort()
    writes = _grant([want for _, _, want in wants], memory, rules, limits, now, rnd, decisions)
    lost = {tasks[other].policy.name: count for other, count in conflicts.items()}
    return Plan(tuple(writes), tuple(decisions), tuple(measured), lost)


@dataclasses.dataclass(frozen=True, slots=True)
class Want:
    """A write that its own row allows, if the endpoint does."""

    row: Row
    policy: SourceLoadPolicy
    known: Measured
    load: float
    reason: str


class Owners:
    """Who has a source that several policies mean: the highest priority, then the first by name."""

    def __init__(self, policies: Sequence[SourceLoadPolicy]) -> None:
        self._order = sorted(range(len(policies)), key=lambda i: (-policies[i].priority, policies[i].name))
        self._policies = policies
        self._known: dict[str, tuple[int | None, tuple[int, ...]]] = {}

    def of(self, model_name: str) -> tuple[int | None, tuple[int, ...]]:
        """Position of the policy that has sources of a model, and those of the others that mean them too."""
        if model_name not in self._known:
            meant = [i for i in self._order if includes(self._policies[i].models, model_name)]
            self._known[model_name] = (meant[0] if meant else None, tuple(meant[1:]))
        return self._known[model_name]


def includes(models: Models, name: str) -> bool:
    """Whether a policy means sources of this model."""
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in models.include) and not any(
        fnmatch.fnmatchcase(name, pattern) for pattern in models.exclude
    )


def _want(
    row: Row, memory: Memory, policy: SourceLoadPolicy, known: Measured, rules: Rules, now: float
) -> tuple[Want | None, str]:
    before = memory.rows[row.key]
    if before.many_ranks:
        return None, MULTI_RANK
    load, reason = _load(memory, row, before, policy, known, now)
    if load is None:
        return None, known.reason
    if not worth_writing(load, row.load, policy.deadband):
        return None, UNCHANGED
    if rules.writer is not Writer.KUBERNETES and (held := _held(row, before, rules, now)):
        return None, held
    return Want(row, policy, known, load, reason), reason


def _load(
    memory: Memory, row: Row, before: RowMemory, policy: SourceLoadPolicy, known: Measured, now: float
) -> tuple[float | None, str]:
    """What should be stored, and on what ground; None where nobody can say."""
    if known.value is not None:
        return target(known.value, before.own, policy.combine), "load"
    last = max(memory.measured_at.get(row.key, NEVER), before.first_at)
    if now - last <= policy.stale_after:
        return None, ""  # a gap of one scrape is not an absence
    if policy.unmeasured is Unmeasured.NEUTRAL:
        return NEUTRAL, "neutral"
    if before.keeps and is_marked(row.load):
        # This server would keep our last word for ever; where heartbeats reset it, silence is enough.
        own = before.last_own
        return NEUTRAL if own is None or not math.isfinite(own) else min(1.0, max(0.0, own)), "decayed"
    return None, ""


def _held(row: Row, before: RowMemory, rules: Rules, now: float) -> str:
    """Why the row's window is not open; empty where it is."""
    if row.updated_at_ms <= 0:
        return NO_STAMPS
    if before.heartbeat_at is None:
        return NO_HEARTBEAT
    return "" if now <= before.heartbeat_at + rules.window else WINDOW_CLOSED


def _wanted(memory: Memory, row: Row, policy: SourceLoadPolicy, known: Measured) -> float | None:
    return None if known.value is None else target(known.value, memory.rows[row.key].own, policy.combine)


def _grant(
    wants: Sequence[Want],
    memory: Memory,
    rules: Rules,
    limits: Limits,
    now: float,
    rnd: random.Random,
    decisions: list[Decision],
) -> list[Write]:
    """Turn wants into writes as far as mode, gate and budget go; the rest is for the next list to decide anew."""
    open_to = gates.allowance(memory.gate, now)
    writes: list[Write] = []
    for want in wants:
        held = ""
        if want.policy.mode is Mode.OBSERVE:
            held = OBSERVE
        elif limits.denied:
            held = BLOCKED
        elif open_to is not None and len(writes) >= open_to:
            held = GATE if memory.gate.phase is gates.Phase.CLOSED else CANARY
        elif len(writes) >= limits.budget:
            held = BUDGET
        if not held:
            writes.append(_write(want, memory.rows[want.row.key], rules, now, rnd))
        decisions.append(_decision(want.row, want.policy, want.known, held or want.reason, want.load, not held))
    return writes


def _write(want: Want, before: RowMemory, rules: Rules, now: float, rnd: random.Random) -> Write:
    nonce = _nonce(want.row.load, before.unanswered, rnd)
    opened = now if before.heartbeat_at is None else before.heartbeat_at
    if rules.writer is Writer.KUBERNETES:
        opened = now
    return Write(
        key=want.row.key,
        worker_rank=want.row.worker_rank,
        load=mark(want.load, nonce),
        nonce=nonce,
        send_before=opened + rules.window,
        answer_before=opened + rules.window + GRACE,
        policy=want.policy.name,
        reason=want.reason,
        model_name=want.row.model_name,
    )


def _nonce(stored: float | None, unanswered: Sequence[int], rnd: random.Random) -> int:
    """Any but the stored one, and those of our writes that may still land: a write must change the row's bits."""
    taken = {nonce_of(stored), *unanswered}
    while (nonce := rnd.randrange(NONCES)) in taken:
        pass
    return nonce


def _decision(
    row: Row,
    policy: SourceLoadPolicy,
    known: Measured,
    reason: str,
    wanted: float | None,
    write: bool = False,
) -> Decision:
    state = State.AMBIGUOUS if reason == MULTI_RANK else known.state
    return Decision(row, policy.name, state, reason, write, known.value, known.age, wanted, known.clamped)
