"""Which heartbeats a list proves, rule by rule; each case is one that would license a write wrongly."""

from __future__ import annotations

import dataclasses

import pytest

from mx_operator.core.gates import Phase
from mx_operator.core.heartbeats import observe, settle, usual_interval
from mx_operator.core.marks import mark
from mx_operator.core.memory import Memory, RowMemory
from mx_operator.core.model import Listing, Outcome, Result, Row, SourceKey, Write
from mx_operator.core.rules import Rules
from mx_operator.policies.spec import Writer

KEY = SourceKey("0123456789abcdef", "w")
RULES = Rules()


def row(beats: int, load: float | None = None, key: SourceKey = KEY, rank: int = 0) -> Row:
    """Stamped in thousandths of a heartbeat: 1000 is one, 2000 the next."""
    return Row(key, rank, "m", 30 * beats, load)


def listing(at: float, *rows: Row) -> Listing:
    return Listing(at, at + 0.1, rows)


def seen(*lists: Listing, memory: Memory | None = None, rules: Rules = RULES) -> Memory:
    memory = memory or Memory()
    for one in lists:
        memory = observe(memory, one, rules)
    return memory


def wrote(memory: Memory, at: float, result: Result = Result.ACCEPTED, nonce: int = 7, took: float = 0.05) -> Memory:
    write = Write(KEY, 0, mark(0.7, nonce), nonce, at + 10, at + 12, "p")
    return settle(memory, [Outcome(write, result, at, at + took)])


def beat(memory: Memory) -> float | None:
    return memory.rows[KEY].heartbeat_at


def test_a_stamp_that_moves_on_an_unmarked_row_is_a_heartbeat_dated_by_the_list_before() -> None:
    assert beat(seen(listing(10, row(1000)), listing(12, row(2000)))) == 10


def test_a_row_seen_first_in_the_first_list_proves_nothing() -> None:
    assert beat(seen(listing(10, row(1000)))) is None


def test_a_new_row_with_a_later_stamp_than_all_before_had_its_heartbeat_since_the_list_before() -> None:
    other = SourceKey("0123456789abcdef", "other")
    memory = seen(listing(10, row(1000, key=other)), listing(12, row(1000, key=other), row(1500)))
    assert beat(memory) == 10


def test_a_new_row_is_dated_no_later_than_its_stamp_lags_behind_the_newest() -> None:
    other = SourceKey("0123456789abcdef", "other")
    memory = seen(listing(10, row(1000, key=other)), listing(12, row(9000, key=other), row(1500)))
    assert beat(memory) == pytest.approx(12 - 7.5 * 30)


@pytest.mark.parametrize(("ms", "load"), [(900, None), (1000, None), (1500, mark(0.5, 3))])
def test_a_new_row_that_is_old_or_marked_waits_for_its_next_heartbeat(ms: int, load: float | None) -> None:
    other = SourceKey("0123456789abcdef", "other")
    assert beat(seen(listing(10, row(1000, key=other)), listing(12, row(1000, key=other), row(ms, load)))) is None


def test_our_own_write_since_the_list_before_is_no_heartbeat_even_on_a_server_that_drops_the_field() -> None:
    memory = wrote(seen(listing(10, row(1000)), listing(12, row(2000))), at=12.2)
    memory = seen(listing(14, row(4000)), memory=memory)
    assert beat(memory) == 10


def test_nor_is_a_write_of_ours_that_nobody_answered_and_that_lands_later() -> None:
    memory = wrote(seen(listing(10, row(1000)), listing(12, row(2000))), at=12.2, result=Result.FAILED, took=2.0)
    memory = seen(listing(15, row(2000)), listing(17, row(5000)), memory=memory)
    assert beat(memory) == 10


def test_a_denied_write_changed_nothing_and_hides_no_heartbeat() -> None:
    memory = wrote(seen(listing(10, row(1000)), listing(12, row(2000))), at=12.2, result=Result.DENIED)
    assert beat(seen(listing(14, row(4000)), memory=memory)) == 12


def test_a_refused_write_may_have_been_stored_all_the_same() -> None:
    """Upstream servers say success=false of any error of their backend, also of one that came after the deed."""
    memory = wrote(seen(listing(10, row(1000)), listing(12, row(2000))), at=12.2, result=Result.REFUSED)
    assert memory.rows[KEY].unanswered == (7,)
    memory = seen(listing(14, row(4000)), memory=memory)
    assert beat(memory) == 10
    assert memory.gate.history == (), "whether it was, nobody knows"


def test_anothers_write_is_no_heartbeat() -> None:
    memory = seen(listing(10, row(1000, mark(0.2, 1))), listing(12, row(2000, mark(0.7, 2))))
    assert beat(memory) is None


def test_a_server_that_keeps_the_load_shows_a_heartbeat_by_the_same_bits() -> None:
    same = mark(0.2, 1)
    memory = seen(listing(10, row(1000, same)), listing(12, row(2000, same)))
    assert beat(memory) == 10
    assert memory.rows[KEY].keeps
    assert memory.rows[KEY].own is None


def test_but_not_where_heartbeats_were_seen_to_reset_it() -> None:
    same = mark(0.2, 1)
    reset = seen(listing(10, row(1000, mark(0.5, 4))), listing(12, row(2000)))
    assert reset.rows[KEY].resets
    memory = seen(listing(14, row(3000, same)), listing(16, row(4000, same)), memory=reset)
    assert beat(memory) == 10


def test_a_stamp_that_was_seen_before_is_no_heartbeat() -> None:
    memory = seen(listing(10, row(5000)), listing(12, row(3000)), listing(14, row(5000)))
    assert beat(memory) is None


def test_a_row_that_comes_back_as_it_was_had_no_heartbeat() -> None:
    other = row(1, key=SourceKey("0123456789abcdef", "other"))
    memory = seen(listing(10, row(1000), other), listing(12, other), listing(14, row(1000), other))
    assert beat(memory) is None


def test_one_that_comes_back_with_a_later_stamp_is_dated_by_when_it_was_last_listed() -> None:
    other = row(1, key=SourceKey("0123456789abcdef", "other"))
    memory = seen(listing(10, row(1000), other), listing(12, other), listing(14, row(5000), other))
    assert beat(memory) == 10


def test_rows_are_remembered_for_twice_the_timeout_and_no_longer() -> None:
    other = row(1, key=SourceKey("0123456789abcdef", "other"))
    memory = seen(listing(0, row(1000), other), listing(180, other))
    assert KEY in memory.rows
    assert KEY not in seen(listing(180.5, other), memory=memory).rows


@pytest.mark.parametrize("load", [None, 0.3])
def test_too_soon_after_a_heartbeat_nothing_is_the_next(load: float | None) -> None:
    """On a replica that drops loads, another operator's write would look like one."""
    memory = seen(listing(10, row(1000)), listing(12, row(2000)), listing(30, row(2949, load)))
    assert beat(memory) == 10
    assert beat(seen(listing(32, row(2951, load)), memory=memory)) == 30


def test_anothers_mark_tells_of_a_heartbeat_after_which_nothing_is_the_next_too_soon() -> None:
    """Who lists first after a heartbeat writes at once: the others never see it bare."""
    memory = seen(listing(10, row(1000)), listing(12, row(2000)), listing(44, row(3010, mark(0.7, 1))))
    assert beat(seen(listing(46, row(3100)), memory=memory)) == 10, "that write again, on a replica that drops loads"
    assert beat(seen(listing(74, row(4000)), memory=memory)) == 44


def test_marks_in_the_window_of_a_heartbeat_tell_of_no_other() -> None:
    memory = seen(listing(10, row(1000)), listing(12, row(2000)), listing(38, row(2900, mark(0.7, 1))))
    assert beat(seen(listing(44, row(3000)), memory=memory)) == 38


def test_nor_do_our_own_whatever_clock_stamps_them() -> None:
    memory = wrote(seen(listing(10, row(1000)), listing(12, row(2000))), at=30.0)
    memory = seen(listing(32, row(3100, mark(0.7, 7))), memory=memory)
    assert beat(seen(listing(44, row(3200)), memory=memory)) == 32


def test_a_mark_at_first_sight_does_not_hold_up_the_next_heartbeat() -> None:
    memory = seen(listing(10, row(9000, mark(0.7, 1))), listing(12, row(9100)))
    assert beat(memory) == 10


def test_nor_is_anything_too_soon_after_the_first_sight_of_an_unmarked_row() -> None:
    memory = seen(listing(10, row(1000)), listing(20, row(1500)))
    assert beat(memory) is None
    assert beat(seen(listing(41, row(2000)), memory=memory)) == 20


def test_a_server_whose_clock_was_set_back_is_believed_again_when_that_lasts() -> None:
    other = SourceKey("0123456789abcdef", "other")
    memory = seen(listing(10, row(900_000)), listing(12, row(901_000)))
    for n in range(7):
        memory = seen(listing(30 * (n + 1), row(1000 * (n + 1), mark(0.4, 1))), memory=memory)
        assert beat(memory) == 10
    memory = seen(listing(212, row(7000, mark(0.4, 1))), listing(240, row(8000)), memory=memory)
    assert beat(memory) == 212
    memory = seen(listing(242, row(8000), row(8050, key=other)), memory=memory)
    assert memory.rows[other].heartbeat_at == 240, "new rows are measured by the clock as it is"


@pytest.mark.parametrize("beats", [(2000, 2000, 2000, 2000), (3000, 6000, 9000, 12000)])
def test_a_list_of_a_replica_that_lags_behind_sets_nothing_back(beats: tuple[int, ...]) -> None:
    memory = seen(listing(10, row(1000)), listing(12, row(2000)))
    for at, stamp in zip((100, 200, 300, 400), beats, strict=True):
        greatest = memory.rows[KEY].greatest_ms
        memory = seen(listing(at, row(1500)), memory=memory)
        assert memory.rows[KEY].greatest_ms == greatest
        memory = seen(listing(at + 50, row(stamp)), memory=memory)
    assert beat(memory) == (10 if beats[-1] == 2000 else 400)


def test_own_is_what_the_source_stored_at_its_last_heartbeat() -> None:
    memory = seen(listing(10, row(1000, 0.1)), listing(12, row(2000, 0.3)))
    assert memory.rows[KEY].own == 0.3
    memory = seen(listing(14, row(3000, mark(0.7, 1))), memory=memory)
    assert memory.rows[KEY].own == 0.3, "another operator's write is not its own"
    memory = seen(listing(16, row(4000, None)), memory=memory)
    assert (memory.rows[KEY].own, memory.rows[KEY].last_own) == (None, 0.3)


def test_a_rank_that_changes_is_remembered() -> None:
    assert seen(listing(10, row(1000)), listing(12, row(2000, rank=1))).rows[KEY].many_ranks


def test_the_kubernetes_writer_moves_no_stamp_so_every_move_is_a_heartbeat() -> None:
    rules = Rules(writer=Writer.KUBERNETES)
    memory = wrote(seen(listing(10, row(1000)), rules=rules), at=10.2)
    memory = seen(listing(12, row(2000, 0.4)), memory=memory, rules=rules)
    assert memory.rows[KEY].own == 0.4


def test_a_read_back_with_a_mark_opens_the_gate() -> None:
    memory = wrote(seen(listing(10, row(1000)), listing(12, row(2000))), at=12.2)
    assert memory.gate.phase is Phase.CANARY
    assert seen(listing(14, row(4000, mark(0.7, 7))), memory=memory).gate.phase is Phase.OPEN


def test_two_read_backs_without_one_close_it() -> None:
    memory = wrote(seen(listing(10, row(1000)), listing(12, row(2000))), at=12.2)
    memory = wrote(seen(listing(14, row(4000)), memory=memory), at=14.2)
    memory = seen(listing(16, row(6000)), memory=memory)
    assert memory.gate.phase is Phase.CLOSED


def test_a_list_in_which_the_next_heartbeat_may_already_be_counts_for_nothing() -> None:
    memory = wrote(seen(listing(10, row(1000)), listing(12, row(2000))), at=36.0)
    assert seen(listing(39.5, row(30000)), memory=memory).gate.history == ()


def test_a_write_that_nobody_answered_counts_for_nothing() -> None:
    memory = wrote(seen(listing(10, row(1000)), listing(12, row(2000))), at=12.2, result=Result.FAILED)
    assert seen(listing(14, row(2000)), listing(20, row(2000)), memory=memory).gate.history == ()


def test_the_usual_interval_is_the_median_and_forgives_misses() -> None:
    stamps = [1000, 2000, 3000, 5000, 6000, 7000]
    memory = seen(*(listing(at, row(ms)) for at, ms in zip(range(0, 180, 30), stamps, strict=True)))
    assert usual_interval(memory.rows, [KEY]) == 30.0
    assert usual_interval(memory.rows, [SourceKey("x", "unknown")]) is None


def test_row_memory_defaults_license_nothing() -> None:
    fresh = RowMemory(0, None, 1, 0.0)
    assert fresh.heartbeat_at is None
    assert dataclasses.replace(fresh, own=0.5).last_own is None
