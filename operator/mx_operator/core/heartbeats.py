"""Which heartbeats a list proves: the rule on which every write rests.

A write is a heartbeat to the server, so only a source's own heartbeat may license one. It is believed only when it
was seen to happen: the row's stamp moved on while this process wrote nothing, and the value says that no other
operator wrote either. It is dated by this process' own clock, no later than it can have happened: when the list was
asked for that still showed the row before it. No clock of another machine takes part.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace as _replace
from typing import Final

from mx_operator.core import gates
from mx_operator.core.marks import is_marked
from mx_operator.core.memory import Memory, RowMemory
from mx_operator.core.model import Listing, Outcome, Result, Row, SourceKey
from mx_operator.core.rules import Rules
from mx_operator.policies.spec import Writer

#: A row that should have had its heartbeat by this long before may have had it since.
_HEARTBEAT_JITTER: Final = 1.0
_INTERVALS: Final = 5
_NONCES_KEPT: Final = 16
#: A write without an answer may still land this long after nobody waits for it any more.
_LANDING: Final = 4.0


def observe(memory: Memory, listing: Listing, rules: Rules) -> Memory:
    """What is known after a list that was not empty.

    Rows that it does not show are remembered for `rules.remember` seconds: one that comes back with the stamp it had
    did not have a heartbeat in between.
    """
    newest_here = max(row.updated_at_ms for row in listing.rows)
    rows: dict[SourceKey, RowMemory] = {}
    marks: list[bool] = []
    any_mark = set_back = False
    for row in listing.rows:
        before = memory.rows.get(row.key)
        marked = is_marked(row.load)
        any_mark |= marked
        if before is None:
            rows[row.key] = _first_seen(row, marked, memory, listing, newest_here)
            continue
        if before.behind_since is not None and listing.sent_at - before.behind_since > rules.remember:
            rows[row.key], set_back = _begun_anew(row, marked, before), True
            continue
        if _must_show_our_write(before, listing, rules):
            marks.append(marked)
        rows[row.key] = _seen_again(row, marked, before, memory.listed_at(before), listing.sent_at, rules)
    rows.update(_gone(memory, rows.keys(), listing.sent_at - rules.remember))
    gate = gates.read_back(memory.gate, marks, any_mark, listing.received_at)
    newest = max(row.greatest_ms for row in rows.values()) if set_back else max(memory.newest_ms, newest_here)
    return Memory(rows, listing.sent_at, newest, memory.measured_at, gate)


def _begun_anew(row: Row, marked: bool, before: RowMemory) -> RowMemory:
    """A server's clock was set back: what its stamps were before says nothing of what they are now.

    As after a restart, the row waits for its next heartbeat; every write of before has long landed.
    """
    stamp = 0 if marked else row.updated_at_ms
    return _replace(
        before,
        load=row.load,
        greatest_ms=row.updated_at_ms,
        gone_at=None,
        behind_since=None,
        heartbeat_at=None,
        known_ms=stamp,
        awaits=False,
        beat_ms=stamp,
    )


def _gone(memory: Memory, listed: Collection[SourceKey], oldest: float) -> Iterator[tuple[SourceKey, RowMemory]]:
    """The remembered rows that this list does not show, but for those that are to be forgotten."""
    for key in memory.rows.keys() - listed:
        before = memory.rows[key]
        if memory.listed_at(before) >= oldest:
            yield key, before if before.gone_at is not None else _replace(before, gone_at=memory.list_before_at)


def _first_seen(row: Row, marked: bool, memory: Memory, listing: Listing, newest_here: int) -> RowMemory:
    """A new row had a heartbeat since the list before, if its stamp is later than any of that list's."""
    own = None if marked else row.load
    heartbeat_at = None
    if not marked and memory.list_before_at is not None and row.updated_at_ms > memory.newest_ms:
        older = (newest_here - row.updated_at_ms) / 1000
        heartbeat_at = min(memory.list_before_at, listing.sent_at - older)
    return RowMemory(
        row.worker_rank,
        row.load,
        row.updated_at_ms,
        listing.sent_at,
        None,
        heartbeat_at,
        0 if marked else row.updated_at_ms,
        own,
        own,
        beat_ms=0 if marked else row.updated_at_ms,
    )


def _seen_again(row: Row, marked: bool, before: RowMemory, listed_at: float, sent_at: float, rules: Rules) -> RowMemory:
    if row.updated_at_ms == before.greatest_ms and row.load == before.load and row.worker_rank == before.worker_rank:
        # By far the most rows of most lists.
        changed = before.awaits or before.gone_at is not None or before.behind_since is not None
        return _replace(before, awaits=False, gone_at=None, behind_since=None) if changed else before
    resets = before.resets or (is_marked(before.load) and not marked)
    # The Kubernetes writer leaves the stamp alone: there every stamp is a heartbeat's.
    quiet = before.written_at < listed_at or rules.writer is Writer.KUBERNETES
    moved = row.updated_at_ms > before.greatest_ms
    new = moved and not _too_soon(row, before, rules)  # the latest heartbeat known of does not explain it
    kept = moved and quiet and marked and row.load == before.load and not resets
    happened = new and (kept or (quiet and not marked))
    beat_ms, intervals = _intervals(row, before, happened or (moved and not marked))
    return _replace(
        before,
        worker_rank=row.worker_rank,
        load=row.load,
        greatest_ms=max(before.greatest_ms, row.updated_at_ms),
        gone_at=None,
        awaits=False,
        heartbeat_at=listed_at if happened else before.heartbeat_at,
        # A mark that is not ours tells of a heartbeat, too: of one that licensed it, and came before it.
        known_ms=row.updated_at_ms if new and (quiet or not marked) else before.known_ms,
        own=(None if marked else row.load) if happened else before.own,
        last_own=before.last_own if marked or row.load is None else row.load,
        resets=resets,
        keeps=before.keeps or kept,
        many_ranks=before.many_ranks or row.worker_rank != before.worker_rank,
        beat_ms=beat_ms,
        intervals=intervals,
        behind_since=_behind_since(row, before, sent_at),
    )


def _behind_since(row: Row, before: RowMemory, sent_at: float) -> float | None:
    if row.updated_at_ms >= before.greatest_ms:
        return None
    return sent_at if before.behind_since is None else before.behind_since


def _too_soon(row: Row, before: RowMemory, rules: Rules) -> bool:
    """Whether the latest heartbeat known of may have licensed this, to anybody.

    Where one replica of a server drops loads, another process' write through it looks like a heartbeat; and so does
    one whose nonce happens to be the stored one's. But writes end with their window, and the next heartbeat comes
    after it.
    """
    within = 1000 * rules.soonest
    return rules.writer is not Writer.KUBERNETES and 0 < row.updated_at_ms - before.known_ms < within


def _intervals(row: Row, before: RowMemory, beat: bool) -> tuple[int, tuple[float, ...]]:
    if not beat:
        return before.beat_ms, before.intervals
    if not before.beat_ms:
        return row.updated_at_ms, before.intervals
    seen = (row.updated_at_ms - before.beat_ms) / 1000
    return row.updated_at_ms, (*before.intervals, seen)[-_INTERVALS:]


def _must_show_our_write(before: RowMemory, listing: Listing, rules: Rules) -> bool:
    """Whether we wrote the row since it was listed, and its next heartbeat cannot have come over it yet."""
    if not before.awaits or before.heartbeat_at is None or before.written_at > listing.sent_at:
        return False
    return listing.received_at < before.heartbeat_at + rules.heartbeat - _HEARTBEAT_JITTER


def settle(memory: Memory, outcomes: Iterable[Outcome]) -> Memory:
    """What is known after a cycle's writes have ended, each in its way."""
    rows = dict(memory.rows)
    gate = memory.gate
    sent = [outcome for outcome in outcomes if outcome.result is not Result.UNSENT]
    for outcome in sent:
        before = rows.get(outcome.write.key)
        if before is not None:
            rows[outcome.write.key] = _after(before, outcome)
    if sent:
        gate = gates.sent(gate, len(sent), max(outcome.sent_at for outcome in sent))
    shown = [outcome.stored for outcome in sent if outcome.stored is not None]
    if shown:
        gate = gates.read_back(gate, shown, any(shown), max(outcome.ended_at for outcome in sent))
    return _replace(memory, rows=rows, gate=gate)


def _after(before: RowMemory, outcome: Outcome) -> RowMemory:
    if outcome.result is Result.ACCEPTED:
        return _replace(
            before,
            written_at=max(before.written_at, outcome.ended_at),
            awaits=True,
            sent_at=outcome.sent_at,
            wrote=outcome.write.load,
        )
    if outcome.result is Result.DENIED:
        return before  # the server did nothing
    # Refused is no proof of that: servers say it of a backend that failed after the deed, too. But that deed is done.
    landing = _LANDING if outcome.result is Result.FAILED else 0.0
    over_at = max(before.written_at, outcome.ended_at + landing)
    unanswered = (*before.unanswered, outcome.write.nonce)[-_NONCES_KEPT:]
    return _replace(before, written_at=over_at, awaits=False, unanswered=unanswered)


def with_many_ranks(memory: Memory, keys: Iterable[SourceKey]) -> Memory:
    """Remember workers that a listing by rank showed under another rank than the plain one."""
    rows = dict(memory.rows)
    for key in keys:
        if key in rows:
            rows[key] = _replace(rows[key], many_ranks=True)
    return _replace(memory, rows=rows)


def with_measured(memory: Memory, keys: Iterable[SourceKey], at: float) -> Memory:
    """Remember which sources had a fresh reading just now, and forget those that are forgotten."""
    measured = dict(memory.measured_at)
    measured.update(dict.fromkeys(keys, at))
    if len(measured) > len(memory.rows):
        measured = {key: when for key, when in measured.items() if key in memory.rows}
    return _replace(memory, measured_at=measured)


def usual_interval(rows: Mapping[SourceKey, RowMemory], keys: Iterable[SourceKey]) -> float | None:
    """The median over sources of their median interval between heartbeats; None while none was seen."""
    medians = [statistics.median(memory.intervals) for key in keys if (memory := rows.get(key)) and memory.intervals]
    return statistics.median(medians) if medians else None
