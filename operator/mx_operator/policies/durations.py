"""Durations as Kubernetes users write them ("500ms", "40s", "1m30s"), as seconds."""

from __future__ import annotations

import re
from typing import Final

_UNITS: Final = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_PART: Final = re.compile(r"(\d+(?:\.\d+)?)(h|ms|m|s)")
#: As the CRD's schema has it.
PATTERN: Final = r"^([0-9]+(\.[0-9]+)?(h|m|s|ms))+$"


def parse(text: str) -> float:
    """Seconds of a duration such as `1m30s`.

    Raises:
        ValueError: It is not one.
    """
    if not re.fullmatch(PATTERN[1:-1], text, re.ASCII):
        raise ValueError(f"{text!r} is not a duration")
    return round(sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text)), 6)


def show(seconds: float) -> str:
    """The shortest such text for a number of seconds: `40s`, `1m30s`, `500ms`."""
    whole, milliseconds = divmod(round(seconds * 1000), 1000)
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    parts = ((hours, "h"), (minutes, "m"), (rest, "s"), (milliseconds, "ms"))
    return "".join(f"{number}{unit}" for number, unit in parts if number) or "0s"
