"""Texts of sysfs files to numbers: what drivers print, what they must not be taken for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mx_exporter.nics.values import GIGABIT, parse_count, parse_integer, parse_rate, parse_state


@pytest.mark.parametrize(
    ("text", "gigabits", "speed"),
    [
        ("800 Gb/sec (4X XDR)", 800, "XDR"),
        ("400 Gb/sec (4X NDR)", 400, "NDR"),
        ("400 Gb/s (4X NDR)", 400, "NDR"),
        ("100 Gb/sec (2X HDR)", 100, "HDR"),
        ("40 Gb/sec (4X FDR10)", 40, "FDR10"),
        ("10 Gb/sec (4X)", 10, ""),
        ("2.5 Gb/sec (1X SDR)", 2.5, "SDR"),
        ("100 Gbps", 100, ""),
        ("100 GB/sec", 100, ""),
    ],
)
def test_a_rate_is_its_leading_number(text: str, gigabits: float, speed: str) -> None:
    assert parse_rate(text) == (gigabits * GIGABIT, speed)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0 GB/sec",
        "1.2.3 Gb/sec",
        "-1 Gb/sec",
        "fast",
        "inf Gb/sec",
        "nan Gb/sec",
        "1e3 Gb/sec",
        "400",
        "400 Mb/sec",
        "99999999 Gb/sec",
        "\u0664 Gb/sec",
        "400 Gb/second hand",
    ],
)
def test_what_is_no_rate_is_none(text: str) -> None:
    assert parse_rate(text) is None


@given(st.text(max_size=60))
def test_no_text_makes_a_rate_that_is_no_number(text: str) -> None:
    rate = parse_rate(text)
    assert rate is None or 0 < rate[0] < 1e16


@pytest.mark.parametrize(
    ("text", "active"),
    [
        ("4: ACTIVE", True),
        ("1: DOWN", False),
        ("2: INIT", False),
        ("3: ARMED", False),
        ("5: ACTIVE_DEFER", False),
        ("", None),
        ("ACTIVE", None),
        ("4", None),
        ("44: ACTIVE", None),
        ("9: NEW", None),
    ],
)
def test_only_active_is_active(text: str, active: bool | None) -> None:
    assert parse_state(text) is active


@given(st.integers(0, 2**64 - 1))
def test_every_counter_is_read_exactly(value: int) -> None:
    assert parse_count(str(value)) == value


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("N/A (no PMA)", "no_pma"),
        ("", "malformed"),
        ("-1", "malformed"),
        ("1.5", "malformed"),
        ("0x10", "malformed"),
        ("1_000", "malformed"),
        ("1 2", "malformed"),
        (str(2**64), "malformed"),
        ("9" * 5000, "malformed"),
        ("\u0661", "malformed"),
    ],
)
def test_what_is_no_counter_is_a_reason(text: str, reason: str) -> None:
    assert parse_count(text) == reason


def test_small_integers_may_be_negative() -> None:
    assert [parse_integer(text) for text in ("-1", "400000", "", "x", None, "1.0")] == [
        -1,
        400000,
        None,
        None,
        None,
        None,
    ]
