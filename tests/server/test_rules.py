"""The laws of listings and scans, for any rows and any clock."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from mx_server.core.records import Listing, Row, Wanted
from mx_server.core.rules import chosen, counted, fresh, next_stamp, reaping
from mx_wire import SourceInstanceRef, SourceStatus

UNKNOWN, INITIALIZING, READY, STALE = SourceStatus.values()
NOW = 1_000_000
TIMEOUT = 90_000

_rows = st.builds(
    lambda number, rank, model, status, age, step: Row(
        SourceInstanceRef(
            mx_source_id=f"{number % 3:016x}",
            worker_id=f"w{number}",
            model_name=model,
            worker_rank=rank,
            training_step=step,
        ),
        status,
        NOW - age,
        None,
        number,
    ),
    st.integers(0, 50),
    st.integers(0, 3),
    st.sampled_from(["m", "n"]),
    st.sampled_from(SourceStatus.values()),
    st.integers(-2 * TIMEOUT, 2 * TIMEOUT),
    st.none() | st.integers(0, 9),
)
_listings = st.lists(_rows, max_size=30, unique_by=lambda row: row.head.worker_id).map(
    lambda rows: Listing(NOW, tuple(rows))
)
_wanted = st.builds(
    Wanted,
    source_id=st.none() | st.just(f"{1:016x}"),
    status=st.none() | st.sampled_from(SourceStatus.values()),
    model_name=st.none() | st.just("m"),
    rank=st.none() | st.integers(0, 3),
    min_training_step=st.none() | st.integers(0, 9),
    min_updated_at=st.none() | st.integers(NOW - TIMEOUT, NOW),
    limit=st.none() | st.integers(1, 10),
)


def _asked(row: Row, wanted: Wanted) -> bool:
    """The filters' meaning, written a second time."""
    head = row.head
    return all(
        [
            wanted.source_id in (None, head.mx_source_id),
            wanted.status in (None, row.status),
            wanted.model_name in (None, head.model_name),
            wanted.rank in (None, head.worker_rank),
            wanted.min_updated_at is None or row.updated_at >= wanted.min_updated_at,
            wanted.min_training_step is None
            or (head.HasField("training_step") and head.training_step >= wanted.min_training_step),
            wanted.status != READY or NOW - TIMEOUT <= row.updated_at <= NOW + TIMEOUT,
        ]
    )


@given(listing=_listings, wanted=_wanted)
def test_a_listing_is_what_was_asked_newest_first(listing: Listing, wanted: Wanted) -> None:
    rows = chosen(listing, wanted, TIMEOUT)
    everything = [row for row in listing.rows if _asked(row, wanted)]
    assert len(rows) == min(len(everything), wanted.limit or len(everything))
    assert all(row in everything for row in rows)
    stamps = [row.updated_at for row in rows]
    assert stamps == sorted(stamps, reverse=True)
    left_out = [row.updated_at for row in everything if row not in rows]
    assert not left_out or max(left_out) <= min(stamps), "the limit leaves out the oldest"


@given(listing=_listings, wanted=_wanted, seed=st.integers())
def test_the_order_of_the_store_does_not_matter(listing: Listing, wanted: Wanted, seed: int) -> None:
    shuffled = list(listing.rows)
    random.Random(seed).shuffle(shuffled)
    assert chosen(Listing(NOW, tuple(shuffled)), wanted, TIMEOUT) == chosen(listing, wanted, TIMEOUT)


@given(listing=_listings)
def test_a_scan_touches_old_rows_only(listing: Listing) -> None:
    work = reaping(listing, TIMEOUT, TIMEOUT + 50_000)
    assert not [row for row in work.stale if row in work.forget]
    for row in listing.rows:
        age = abs(NOW - row.updated_at)
        assert (row in work.stale) == (row.status in (READY, INITIALIZING) and age > TIMEOUT)
        assert (row in work.forget) == (row.status in (STALE, UNKNOWN) and age > TIMEOUT + 50_000)


@given(listing=_listings)
def test_what_is_listed_as_ready_is_not_reaped_in_the_same_instant(listing: Listing) -> None:
    listed = chosen(listing, Wanted(status=READY), TIMEOUT)
    stale = reaping(listing, TIMEOUT, TIMEOUT).stale
    for row in listing.rows:
        if row.status == READY:
            assert (row in listed) != (row in stale)


@given(stored=st.integers(0, 2 * NOW), now=st.integers(1, 2 * NOW))
def test_a_stamp_moves_on_unless_the_stored_one_is_from_a_broken_clock(stored: int, now: int) -> None:
    stamp = next_stamp(stored, now, 1000)
    assert stamp == now or now <= stamp <= now + 1001
    assert stamp > stored or stored > now + 1000


def test_a_stamp_from_the_future_is_not_fresh_for_ever() -> None:
    assert fresh(NOW + 5000, NOW, TIMEOUT), "a replica's clock may be ahead by a little"
    assert not fresh(NOW + TIMEOUT + 1, NOW, TIMEOUT)
    assert not fresh(0, 5, TIMEOUT), "no stamp at all"


def test_counts_are_by_status_that_occurs() -> None:
    head = SourceInstanceRef()
    rows = [Row(head, status, 1, None, 0) for status in (READY, READY, STALE)]
    assert counted(rows) == {READY: 2, STALE: 1}
