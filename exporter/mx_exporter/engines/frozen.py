"""Which gauges stand still though they cannot: what vLLM leaves behind when all its requests abort at once.

An engine at rest has freed its cache. A usage above zero while nothing at all has moved for a while (no token, no
request, the gauge itself) was left there by an engine that stopped counting (vllm#29928, vllm#22545): believed, it
keeps the source without work, so that it never counts again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from mx_exporter.engines.readings import Activity, Reading

#: Of each engine and rank of a page: what moved last, and since when it has not.
Still = Mapping[tuple[str, str], tuple[Activity, float]]


def observe(before: Still, readings: Iterable[Reading], now: float) -> Still:
    """What stands still after one more page, and since when; what the page does not show is forgotten."""
    after: dict[tuple[str, str], tuple[Activity, float]] = {}
    for reading in readings:
        key = (reading.engine, reading.index)
        last = before.get(key)
        after[key] = last if last is not None and last[0] == reading.activity else (reading.activity, now)
    return after


def judge(still: Still, reading: Reading, now: float, limit: float) -> Reading:
    """The reading, or one without a value when its gauge has been frozen for `limit` seconds."""
    activity, since = still.get((reading.engine, reading.index), (b"", now))
    if not reading.value or not activity or reading.may_rest or now - since < limit:
        return reading
    return dataclasses.replace(reading, value=None, reason="frozen")
