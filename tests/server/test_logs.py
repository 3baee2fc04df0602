"""A warning of one kind is said once in a while, and says how many were not."""

from __future__ import annotations

import pytest

from mx_server.logs import Seldom


def test_repeated_warnings_are_counted_instead_of_said(caplog: pytest.LogCaptureFixture) -> None:
    now = 100.0
    seldom = Seldom(lambda: now)
    for number in range(500):
        seldom.warning("down", f"no answer {number}")
    seldom.warning("other", "something else")
    assert [record.message for record in caplog.records] == ["no answer 0", "something else"]
    now = 111.0
    seldom.warning("down", "still no answer")
    assert caplog.records[-1].message == "still no answer (499 more like this meanwhile)"


def test_kinds_that_never_repeat_do_not_fill_the_memory() -> None:
    seldom = Seldom()
    for number in range(2000):
        seldom.warning(number, "one")
    assert len(seldom._said) <= 256
