"""The read-back gate: does this server store the load it is sent?

Safety rests on it. On a server that drops the field every write of ours looks like a heartbeat of the source, and
keeps it alive for ever. So an endpoint starts with a canary of at most three writes, opens up when a mark is read
back, and closes when marks go missing: servers from before the field, custom resources whose schema lacks it, and
replicas of mixed versions during an upgrade.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Sequence
from typing import Final

CANARIES: Final = 3
#: Of this many counted read-backs, so many without a mark close the gate; one does where it was closed before.
_HISTORY: Final = 20
_TOO_MANY_LOST: Final = 2
#: Seconds after which undecided canaries may be followed by others.
_CANARY_PATIENCE: Final = 30.0
#: Seconds between single canaries while closed.
RETRY: Final = 600.0
_NEVER: Final = float("-inf")


class Phase(enum.Enum):
    """CANARY: not known yet. OPEN: it stores. CLOSED: it does not, or not always."""

    CANARY = "canary"
    OPEN = "open"
    CLOSED = "closed"


@dataclasses.dataclass(frozen=True, slots=True)
class Gate:
    """What read-backs have shown so far.

    Attributes:
        phase: What is believed.
        history: The last counted read-backs: did the row show a mark?
        canary_at: When the first canary of the current batch was sent.
        canaries: How many canaries this batch has sent.
        burnt: It was closed before: some replica does not store loads, or did not.
    """

    phase: Phase = Phase.CANARY
    history: tuple[bool, ...] = ()
    canary_at: float = _NEVER
    canaries: int = 0
    burnt: bool = False


#: The gate of an endpoint of which nothing is known.
UNTRIED: Final = Gate()


def closed(now: float) -> Gate:
    """The gate of an endpoint of which it is on record that it does not store loads."""
    return Gate(Phase.CLOSED, canary_at=now, canaries=1, burnt=True)


def allowance(gate: Gate, now: float) -> int | None:
    """How many writes may be sent now; None: as many as the budget has."""
    if gate.phase is Phase.OPEN:
        return None
    if gate.phase is Phase.CLOSED:
        return 0 if now - gate.canary_at < RETRY else 1
    return CANARIES if now - gate.canary_at >= _CANARY_PATIENCE else max(0, CANARIES - gate.canaries)


def sent(gate: Gate, count: int, now: float) -> Gate:
    """The gate after `count` writes were sent."""
    if not count or gate.phase is Phase.OPEN:
        return gate
    first = gate.phase is Phase.CLOSED or now - gate.canary_at >= _CANARY_PATIENCE
    return dataclasses.replace(
        gate, canary_at=now if first else gate.canary_at, canaries=count if first else gate.canaries + count
    )


def read_back(gate: Gate, marks: Sequence[bool], any_mark: bool, now: float) -> Gate:
    """The gate after a list.

    Args:
        gate: Before it.
        marks: For each own write that the list must show: does its row have a mark?
        any_mark: Whether any row has one; another process' writes show as well as ours that a server stores them.
        now: When the list was here.
    """
    if gate.phase is Phase.CLOSED:
        return Gate(burnt=True) if any(marks) else gate
    history = (*gate.history, *marks)[-_HISTORY:]
    if history.count(False) >= (1 if gate.burnt else _TOO_MANY_LOST):
        return closed(now)
    if history == gate.history and (gate.phase is Phase.OPEN or not any_mark):
        return gate
    return dataclasses.replace(gate, phase=Phase.OPEN if any_mark else gate.phase, history=history)
