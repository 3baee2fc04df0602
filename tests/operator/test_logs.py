"""Logs: one line a cause a minute, and JSON that machines can read."""

from __future__ import annotations

import dataclasses
import json
import logging
import sys

from mx_operator.core.reports import Check
from mx_operator.telemetry.logs import Json, OncePerMinute
from mx_operator.telemetry.status import StatusLog
from tests.operator.test_metrics import REPORT


def record(message: str, *arguments: object, level: int = logging.WARNING) -> logging.LogRecord:
    return logging.LogRecord("mx_operator.test", level, __file__, 1, message, arguments, None)


def test_a_cause_is_one_line_a_minute_with_the_number_held_back() -> None:
    now = [0.0]
    once = OncePerMinute(lambda: now[0])
    shown = []
    for second in range(125):
        now[0] = second
        for server in ("mx-1:8001", "mx-2:8001"):
            line = record("%s: a write was %s", server, f"refused {second} times, 100 %")
            if once.filter(line):
                shown.append(line.getMessage())
    assert shown[:2] == [
        "mx-1:8001: a write was refused 0 times, 100 %",
        "mx-2:8001: a write was refused 0 times, 100 %",
    ]
    assert shown[2] == "mx-1:8001: a write was refused 60 times, 100 % (and 59 more like it)"
    assert len(shown) == 6


def test_what_is_no_complaint_is_never_held_back() -> None:
    once = OncePerMinute(lambda: 0.0)
    assert all(once.filter(record("hello", level=logging.INFO)) for _ in range(5))


def test_json_is_one_object_a_line() -> None:
    try:
        raise ValueError("bad\nthing")
    except ValueError:
        line = record('say "%s"', "ü\n")
        line.exc_info = sys.exc_info()
    text = Json().format(line)
    content = json.loads(text)
    assert "\n" not in text
    assert (content["level"], content["message"]) == ("WARNING", 'say "ü\n"')
    assert "ValueError" in content["error"]
    assert content["time"].endswith("Z")


def test_turns_are_logged_once_three_cycles_agree() -> None:
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("mx_operator.telemetry.status")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        sink = StatusLog()
        bad = dataclasses.replace(
            REPORT, server=Check(True, "Listing"), prometheus=Check(False, "Timeout", "no answer")
        )
        good = dataclasses.replace(bad, prometheus=Check(True, "Answering"))
        for report in (good, good, bad, good, bad, bad, bad, bad):
            sink.publish(report)
    finally:
        logger.removeHandler(handler)
    turns = [line for line in said if "PrometheusReachable" in line]
    assert turns == [
        "policy fleet: PrometheusReachable: yes (Answering: )",
        "policy fleet: PrometheusReachable: no (Timeout: no answer)",
    ]
    assert sink.document()["fleet"]["conditions"]["PrometheusReachable"]["reason"] == "Timeout"
    sink.keep(set())
    assert sink.document() == {}
