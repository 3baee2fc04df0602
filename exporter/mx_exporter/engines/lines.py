"""The filter before the parser: the few wanted lines of a page, picked from its bytes as they arrive.

Pages may have megabytes (vllm#44691: 22 MB) of which a dozen lines matter. One compiled pattern looks for the wanted
names at the beginnings of lines; nothing but an unfinished line is kept between pieces, whatever the page's length,
and each step is short, so that other threads get their turn.
"""

from __future__ import annotations

import functools
import re

from mx_exporter.engines.gauges import Table

#: No page of an engine has more lines that are wanted (64 ranks with two dozen series each), nor longer ones.
MAX_LINES = 2048
MAX_KEPT = 1 << 20
_EOF = b"# EOF\n"


class LineFilter:
    """Feed it the pieces of a page, then ask for `lines`; it keeps the wanted ones, without their line ends."""

    def __init__(self, table: Table, max_line: int) -> None:
        self._wanted = _pattern(table)
        self._max_line = max_line
        self._rest = b"\n"  # from the last line end on; the pattern wants one in front
        self._skipping = False  # inside a line that is too long
        self._tail = b""
        self.lines: list[bytes] = []
        self.overlong = 0  # wanted lines that were too long to keep
        self.overfull = False  # there were more than MAX_LINES, or more than MAX_KEPT bytes in them
        self._kept = 0
        self.size = 0  # bytes seen
        self.first = b""  # the first of them that is no space

    def feed(self, piece: bytes) -> None:
        """Take the next bytes of the page."""
        self.size += len(piece)
        self.first = self.first or piece.lstrip()[:1]
        self._tail = (self._tail + piece[-len(_EOF) :])[-len(_EOF) :]
        if self._skipping:
            end = piece.find(b"\n")
            if end < 0:
                return
            piece, self._skipping = piece[end:], False
        data = self._rest + piece
        cut = data.rfind(b"\n")
        self._keep(self._wanted.findall(data, 0, cut))
        self._rest = data[cut:]
        if len(self._rest) > self._max_line:
            self.overlong += bool(self._wanted.match(self._rest))
            self._rest, self._skipping = b"", True

    @property
    def whole(self) -> bool:
        """Whether the page so far ends with a line end; a wanted line without one is not kept, it may be a part."""
        return not self._skipping and self._rest == b"\n"

    @property
    def ended(self) -> bool:
        """Whether the page so far ends with OpenMetrics' mark, which may come without a line end."""
        return self._tail.rstrip(b"\n").endswith(_EOF.rstrip(b"\n"))

    def _keep(self, found: list[bytes]) -> None:
        for line in found:
            if len(line) > self._max_line:
                self.overlong += 1
            elif len(self.lines) >= MAX_LINES or self._kept + len(line) > MAX_KEPT:
                self.overfull = True
            else:
                self.lines.append(line[1:])
                self._kept += len(line)


@functools.lru_cache(maxsize=8)
def _pattern(table: Table) -> re.Pattern[bytes]:
    names = [*table.by_metric, *(f"ray_{name}" for name in table.by_metric)]
    return re.compile(rb"\n" + _trie(names).encode() + rb"[ \t{][^\n]*")


def _trie(names: list[str]) -> str:
    """A pattern of all names that shares their beginnings; an alternation of them all is several times slower."""
    tails: dict[str, list[str]] = {}
    for name in names:
        if name:
            tails.setdefault(name[0], []).append(name[1:])
    branches = [("[:_]" if letter == "_" else letter) + _trie(rest) for letter, rest in sorted(tails.items())]
    if not branches:
        return ""
    pattern = "|".join(branches)
    return f"(?:{pattern})?" if "" in names else f"(?:{pattern})" if len(branches) > 1 else pattern
