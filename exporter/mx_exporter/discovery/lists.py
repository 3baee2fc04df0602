"""The answer to a LIST, taken apart item by item.

As one document the pods of a full node become 20 MB of Python objects for a moment, in a process that is to live in
60; one after another they never are.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

_SPACE = re.compile(r"[ \t\r\n]*")
_DECODER = json.JSONDecoder()


def each_item(body: bytes | bytearray, take: Callable[[Mapping[str, Any]], None]) -> str:
    """Hand every item of a list to `take`.

    Args:
        body: The JSON of a Kubernetes list.
        take: Called with each item, before the next one is read.

    Returns:
        The list's resource version.

    Raises:
        ValueError: It is no such list; some items may have been handed over.
    """
    walk = _Walk(body)
    version = None
    for key in walk.members("{", "}"):
        if key == "items" and walk.next_is("["):
            for _ in walk.members("[", "]"):
                item = walk.value()
                if isinstance(item, dict):
                    take(item)
            continue
        value = walk.value()
        if key == "metadata" and isinstance(value, dict):
            version = value.get("resourceVersion")
    walk.ended()
    if not isinstance(version, str):
        raise ValueError("no resourceVersion")
    return version


class _Walk:
    """A position in a JSON text that moves on value by value.

    The whole text is held as Latin-1, a byte for each letter: as Unicode one emoji in one annotation would make it four
    times as large. Structure is ASCII in both; each value's own bytes are then read as what they are.
    """

    def __init__(self, body: bytes | bytearray) -> None:
        self._text = body.decode("latin-1")
        self._at = 0

    def members(self, begin: str, end: str) -> Iterator[object]:
        """Stand before each value of an object (yielding its key) or of an array; the caller reads the value."""
        self._take(begin)
        if self.next_is(end):
            return self._take(end)
        while True:
            key = None
            if end == "}":
                key = self.value()
                self._take(":")
            yield key
            if self.next_is(end):
                return self._take(end)
            self._take(",")

    def value(self) -> Any:
        """The value at the position."""
        self._skip()
        start = self._at
        _, self._at = _DECODER.raw_decode(self._text, start)
        return json.loads(self._text[start : self._at].encode("latin-1").decode("utf-8"))

    def ended(self) -> None:
        """Nothing may follow: two documents in one answer are none."""
        self._skip()
        if self._at != len(self._text):
            raise ValueError(f"more after the end, at {self._at}")

    def next_is(self, mark: str) -> bool:
        """Whether the next character that is no space is this one."""
        self._skip()
        return self._text.startswith(mark, self._at)

    def _take(self, mark: str) -> None:
        if not self.next_is(mark):
            raise ValueError(f"{mark!r} expected at {self._at}")
        self._at += 1

    def _skip(self) -> None:
        space = _SPACE.match(self._text, self._at)
        self._at = space.end() if space else self._at
