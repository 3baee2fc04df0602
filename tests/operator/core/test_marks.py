"""The mark: near, recognisable, different each time, and never a value that people or programs write."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mx_operator.core.marks import FLOOR, NONCES, PRECISION, is_marked, mark, nonce_of

loads = st.floats(0.0, 1.0)
nonces = st.integers(0, NONCES - 1)


def bits(value: float) -> int:
    return int(struct.unpack("<I", struct.pack("<f", value))[0])


@given(loads, nonces)
def test_a_marked_load_is_near_inside_and_carries_its_nonce(load: float, nonce: int) -> None:
    marked = mark(load, nonce)
    assert FLOOR < marked < 1.0
    assert abs(marked - load) <= PRECISION == 0.002
    assert bits(marked) & 0xFFFF == 0xA500 | nonce
    assert nonce_of(marked) == nonce
    assert struct.unpack("<f", struct.pack("<f", marked))[0] == marked, "it is a float32, and so survives the wire"


@given(loads, nonces, nonces)
def test_two_nonces_are_two_values_that_are_equal_otherwise(load: float, one: int, other: int) -> None:
    assert (mark(load, one) == mark(load, other)) is (one == other)
    assert bits(mark(load, one)) >> 8 == bits(mark(load, other)) >> 8, "equal but for the nonce"


@given(loads, loads, nonces)
def test_marking_keeps_the_order(one: float, other: float, nonce: int) -> None:
    low, high = sorted((one, other))
    assert mark(low, nonce) <= mark(high, nonce)


@pytest.mark.parametrize("own", [0.0, 1.0, 0.25, 0.5, None, -1.0, 2.5, float("nan"), float("inf"), float("-inf")])
def test_what_sources_write_is_not_marked(own: float | None) -> None:
    assert not is_marked(own)


def test_no_hundredth_is_marked() -> None:
    hundredths = [struct.unpack("<f", struct.pack("<f", k / 100))[0] for k in range(101)]
    assert not any(is_marked(value) for value in hundredths)


def test_one_float_in_256_is_taken_for_marked() -> None:
    between = [struct.unpack("<f", struct.pack("<I", bits(0.5) + step))[0] for step in range(1 << 16)]
    assert sum(map(is_marked, between)) == 256


def test_the_ends_are_as_documented() -> None:
    assert round(mark(1.0, 0), 4) == 0.9986
    assert round(mark(0.0, 0), 5) == 0.00098


@pytest.mark.parametrize(("load", "nonce"), [(1.01, 0), (-0.01, 0), (float("nan"), 0), (0.5, 256), (0.5, -1)])
def test_what_cannot_be_marked_is_refused(load: float, nonce: int) -> None:
    with pytest.raises(ValueError, match="cannot mark"):
        mark(load, nonce)
