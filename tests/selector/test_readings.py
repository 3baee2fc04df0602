"""What a row says: loads of both dialects, clamps, presence; stamps and their age."""

from __future__ import annotations

import math
import types
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mx_selector import readings
from mx_wire import Dialect, SourceInstanceRef, set_load
from tests.parts import released
from tests.selector.rows import row, rows

INF, NAN = math.inf, math.nan


@pytest.mark.parametrize(
    ("published", "load"),
    [
        (None, None),
        (0.0, 0.0),
        (0.5, 0.5),
        (1.0, 1.0),
        (42.0, 1.0),
        (-7.0, 0.0),
        (INF, 1.0),
        (-INF, 0.0),
        (NAN, None),
    ],
)
def test_loads_are_clamped_and_nan_is_unknown(published: float | None, load: float | None) -> None:
    assert readings.load_of(row("w", published)) == load


@given(st.lists(st.none() | st.floats(width=32), max_size=30))
def test_a_whole_list_reads_like_each_row(loads: list[float | None]) -> None:
    candidates = rows(loads)
    assert readings.loads_of(candidates) == [readings.load_of(c) for c in candidates]


@pytest.mark.parametrize("dialect", list(Dialect))
def test_rows_of_either_dialect_are_read(dialect: Dialect) -> None:
    listed = row("w")
    set_load(listed, 0.25, dialect)
    assert readings.loads_of([listed]) == [0.25]


@pytest.mark.released
@pytest.mark.parametrize("dialect", list(Dialect))
def test_the_released_clients_rows_are_read_even_from_a_draft_server(dialect: Dialect) -> None:
    listed = row("w")
    set_load(listed, 0.25, dialect)
    theirs = released.module("p2p_pb2").SourceInstanceRef.FromString(listed.SerializeToString())
    assert readings.loads_of([theirs]) == [0.25]


class Draft:
    """A message whose `source_load` has no presence, as the first draft's stubs have it."""

    def __init__(self, load: float) -> None:
        self.source_load = load

    def HasField(self, name: str) -> bool:  # noqa: N802 - protobuf's name
        raise ValueError(f'Field "{name}" does not have presence.')


def test_without_presence_zero_is_unknown_and_anything_else_is_a_load() -> None:
    assert readings.loads_of([Draft(0.0), Draft(0.4), Draft(7.0)]) == [None, pytest.approx(0.4), 1.0]


def test_a_row_without_the_field_is_unknown() -> None:
    class NoSuchField:
        def HasField(self, name: str) -> bool:  # noqa: N802
            raise ValueError(name)

    assert readings.loads_of([NoSuchField(), types.SimpleNamespace()]) == [None, None]


@pytest.mark.parametrize(("stamp", "read"), [(0, 0), (5, 5), (-5, 0), ("x", 0), (None, 0), (1.5, 0)])
def test_stamps_are_positive_integers_or_nothing(stamp: Any, read: int) -> None:
    candidate = types.SimpleNamespace(updated_at=stamp)
    assert readings.stamp_of(candidate) == read
    assert readings.stamps_of([candidate, SourceInstanceRef(updated_at=9)]) == [read, 9]


@pytest.mark.parametrize(
    ("stamps", "old"),
    [
        ([], None),
        ([0, 0], None),
        ([100_000, 55_000], None),  # 45 s apart: just in time
        ([100_000, 54_999], [False, True]),
        ([0, 100_000, 50_000, 99_000], [False, False, True, False]),
        ([20_000, 20_000, 100_000], None),  # the newest is confirmed by nobody: it may be the wrong one
        ([1_000, 100_000, 10_000_000], [True, True, False]),  # nobody confirms anybody: the newest counts
        ([1_000, 2_000, 100_000, 101_000, 10_000_000], [True, True, False, False, False]),
    ],
)
def test_age_goes_by_the_newest_stamp_that_another_confirms(stamps: list[int], old: list[bool] | None) -> None:
    got = readings.outdated(stamps)
    assert got == old or (old is None and got == [False] * len(stamps))


@given(st.lists(st.integers(0, 200_000), max_size=12), st.integers(1, 10**15))
def test_one_foreign_stamp_ages_no_row_that_was_fresh(stamps: list[int], foreign: int) -> None:
    before = readings.outdated(stamps) or [False] * len(stamps)
    after = readings.outdated([*stamps, foreign]) or [False] * (len(stamps) + 1)
    confirmed = sum(1 for s in stamps if s and max(stamps) - s <= readings.STALE_AFTER_MS) > 1
    if confirmed and abs(foreign - max(stamps)) > readings.STALE_AFTER_MS:
        assert after[:-1] == before
