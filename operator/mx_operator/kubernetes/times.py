"""Moments as Kubernetes writes them: RFC 3339, in UTC, to the second (or finer, where it says so)."""

from __future__ import annotations

import datetime


def show_time(unix: float) -> str:
    """`2026-01-31T12:00:00Z`."""
    return datetime.datetime.fromtimestamp(int(unix), datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def show_micro_time(unix: float) -> str:
    """As `show_time`, with microseconds (Kubernetes' MicroTime)."""
    return datetime.datetime.fromtimestamp(unix, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def parse_time(text: str) -> float:
    """Unix seconds of such a text.

    Raises:
        ValueError: It is none.
    """
    return datetime.datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
