"""One line of an exposition page, text format or OpenMetrics, taken strictly.

The filter in `lines` has chosen the line already; what is not exactly a sample is refused here, so that half a line
or a mangled one never becomes a number.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping

# Everything that repeats is possessive (`++`): a pattern that gives back what it took would need seconds for one long
# line of a page that somebody made for that, and no other thread runs meanwhile.
_NAME = re.compile(rb"[a-zA-Z_:][a-zA-Z0-9_:]*+")
_LABEL = re.compile(rb'[ \t]*+([a-zA-Z_][a-zA-Z0-9_]*+)[ \t]*+=[ \t]*+"((?:[^"\\\n]++|\\.)*+)"[ \t]*+(,?)')
_START = re.compile(rb"[ \t]*+\{")
_END = re.compile(rb"[ \t]*+}")
_REAL = rb"(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(?:[eE][+-]?[0-9]++)?"
_NUMBER = rb"[+-]?(?:" + _REAL + rb"|[iI][nN][fF](?:inity)?|[nN][aA][nN])"
# Value, timestamp (milliseconds, or seconds with a fraction), exemplar. Neither of the last two means anything to us.
_VALUE = re.compile(rb"[ \t]++(" + _NUMBER + rb")(?:[ \t]++-?" + _REAL + rb")?(?:[ \t]++#.*+)?[ \t]*+\Z")
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_ESCAPES = {"n": "\n", "\\": "\\", '"': '"'}


class LineError(ValueError):
    """The line is no sample."""


@dataclasses.dataclass(frozen=True, slots=True)
class Sample:
    """A sample as the page spells it. The value may be anything a float may be."""

    name: str
    labels: Mapping[str, str]
    value: float


def parse(line: bytes) -> Sample:
    """Read one line without its line end.

    Raises:
        LineError: It is not a sample.
    """
    name = _NAME.match(line)
    if name is None:
        raise LineError("no metric name")
    labels, position = _labels(line, name.end())
    value = _VALUE.match(line, position)
    if value is None:
        raise LineError("no value")
    return Sample(name[0].decode(), labels, float(value[1]))


def _labels(line: bytes, position: int) -> tuple[dict[str, str], int]:
    labels: dict[str, str] = {}
    start = _START.match(line, position)
    if start is None:
        return labels, position
    position, more = start.end(), True
    while more and (label := _LABEL.match(line, position)):
        key = label[1].decode()
        if key in labels:
            raise LineError("a label appears twice")
        labels[key] = _unescape(label[2])
        position, more = label.end(), bool(label[3])
    end = _END.match(line, position)
    if end is None:
        raise LineError("labels do not end")
    return labels, end.end()


def _unescape(raw: bytes) -> str:
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise LineError("not UTF-8") from error
    return _ESCAPE.sub(lambda match: _ESCAPES.get(match[1], match[0]), text) if "\\" in text else text


def name_of(line: bytes) -> str:
    """The metric's name at the beginning of a line, however the rest looks."""
    name = _NAME.match(line)
    return name[0].decode() if name else ""
