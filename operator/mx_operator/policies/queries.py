"""What can be said of a PromQL text without a server: is it whole, a bare selector, and does it read what it must not.

Not a parser: Prometheus is that, and answers a wrong expression with a clear error. This reads tokens, so that
strings and comments cannot hide or fake a name or a bracket.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from typing import Final

#: Gauges that repeat what the server stores. As a signal each would feed a load back into itself and, with
#: `combine: max`, hold it up for good.
ECHOES: Final = frozenset({"mx_p2p_source_load"})
_PUSHED: Final = "pushgateway"
_TOKEN: Final = re.compile(
    r"""(?P<space>\s+|\#[^\n]*)
    |(?P<text>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|`[^`]*`)
    |(?P<name>[a-zA-Z_:][a-zA-Z0-9_:.]*)
    |(?P<sign>=~|!~|!=|==|[=<>]=?|.)""",
    re.VERBOSE | re.DOTALL,
)


_OPENS: Final = {")": "(", "]": "[", "}": "{"}
_CLOSES: Final = {opening: closing for closing, opening in _OPENS.items()}


@dataclasses.dataclass(frozen=True, slots=True)
class Token:
    """A piece of a query; `text` is without its quotes for a string."""

    kind: str  # text, name or sign
    text: str


@dataclasses.dataclass(frozen=True, slots=True)
class Matcher:
    """One `label op "value"` between braces."""

    label: str
    operator: str
    value: str

    def accepts(self, value: str) -> bool:
        """Whether a series whose label has this value passes; a pattern that cannot be read accepts all."""
        if self.operator in ("=", "!="):
            return (self.value == value) == (self.operator == "=")
        try:
            return bool(re.fullmatch(self.value, value)) == (self.operator == "=~")
        except re.error:
            return True


def tokens(query: str) -> list[Token]:
    """The pieces of a query, without white space and comments."""
    found = [(match.lastgroup or "", match.group()) for match in _TOKEN.finditer(query)]
    return [Token(kind, text[1:-1] if kind == "text" else text) for kind, text in found if kind != "space"]


def unbalanced(query: str) -> str | None:
    """What is wrong with the query's brackets and quotes; None where each has its partner."""
    open_: list[str] = []
    for match in _TOKEN.finditer(query):
        kind, piece = match.lastgroup, match.group()
        # Only a string in backquotes may go over the end of its line.
        if piece in ("'", '"', "`") or (kind == "text" and piece[0] != "`" and "\n" in piece):
            return f"has a {piece[0]} that nothing closes"
        if kind == "sign" and piece in _CLOSES:
            open_.append(piece)
        elif kind == "sign" and piece in _OPENS:
            if not open_:
                return f"has a {piece} that nothing opens"
            if open_[-1] != _OPENS[piece]:
                return f"has a {piece} where a {_CLOSES[open_[-1]]} belongs"
            open_.pop()
    return f"has a {open_[-1]} that nothing closes" if open_ else None


def matchers(pieces: list[Token]) -> list[Matcher]:
    """Every matcher of every selector."""
    return [
        Matcher(label.text, sign.text, value.text)
        for label, sign, value in zip(pieces, pieces[1:], pieces[2:], strict=False)
        if sign.text in ("=", "!=", "=~", "!~") and value.kind == "text" and label.kind in ("name", "text")
    ]


def is_bare_selector(query: str) -> bool:
    """Whether `timestamp(query)` is the time of the samples: a metric, braces, or both, and nothing else."""
    pieces = tokens(query)
    if pieces and pieces[0].kind == "name":
        pieces = pieces[1:]
        if not pieces:
            return True
    signs = [piece.text for piece in pieces if piece.kind == "sign"]
    closed = len(pieces) > 1 and pieces[0].text == "{" and pieces[-1].text == "}" and pieces[0].kind == "sign"
    return closed and signs.count("{") == 1 and signs.count("}") == 1 and "(" not in signs


def echoed(query: str) -> str | None:
    """The gauge in ECHOES that the query reads, by name or by a matcher on `__name__`."""
    pieces = tokens(query)
    named = {piece.text for piece in pieces} & ECHOES
    if named:
        return min(named)
    by_pattern = [matcher for matcher in matchers(pieces) if matcher.label == "__name__"]
    positive = [matcher for matcher in by_pattern if matcher.operator in ("=", "=~")]
    return next((echo for echo in sorted(ECHOES) if positive and all(m.accepts(echo) for m in by_pattern)), None)


def reads_pushgateway(query: str) -> bool:
    """Whether the query picks series by a job that a Pushgateway usually has: they outlive what pushed them."""
    return any(
        matcher.label in ("job", "exported_job") and matcher.operator in ("=", "=~") and matcher.accepts(_PUSHED)
        for matcher in matchers(tokens(query))
        if matcher.value not in (".+", ".*")
    )


def mentions(query: str, names: Iterable[str]) -> bool:
    """Whether any of the names appears as a name or a whole string in the query."""
    wanted = set(names)
    return any(piece.text in wanted for piece in tokens(query) if piece.kind != "sign")


def aggregates_by(query: str) -> bool:
    """Whether the query says which labels to keep."""
    return any(piece.text in ("by", "on") and piece.kind == "name" for piece in tokens(query))
