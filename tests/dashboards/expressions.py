"""What an expression reads: its selectors, and the calls around them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import promql_parser

#: Texts that parse in place of Grafana's variables.
PARSES = {
    "job": "x",
    "model": "x",
    "source": "x",
    "busy": "0.7",
    "baseline": "1h",
    "__rate_interval": "5m",
    "__interval": "15s",
    "__range": "1h",
}


@dataclasses.dataclass(frozen=True)
class Selector:
    """One selector: the metrics it names, its matchers, and the functions it stands in."""

    metrics: tuple[str, ...]
    matchers: Mapping[str, str]
    inside: tuple[str, ...]
    range: bool


def selectors(expression: str) -> list[Selector]:
    """All selectors of an expression that has its variables filled in."""
    return list(_walk(promql_parser.parse(expression), ()))


def _walk(node: Any, inside: tuple[str, ...]) -> Iterator[Selector]:
    kind = type(node).__name__
    if kind == "VectorSelector":
        yield _selector(node, inside, ranged=False)
    elif kind == "MatrixSelector":
        yield _selector(node.vector_selector, inside, ranged=True)
    elif kind == "Call":
        for argument in node.args:
            yield from _walk(argument, (*inside, node.func.name))
    else:
        for name in ("expr", "lhs", "rhs", "param"):
            child = getattr(node, name, None)
            if child is not None and type(child).__module__.startswith("promql_parser"):
                yield from _walk(child, (*inside, "-") if kind == "BinaryExpr" and str(node.op) == "-" else inside)


def _selector(node: Any, inside: tuple[str, ...], *, ranged: bool) -> Selector:
    matchers = {one.name: one.value for one in node.matchers.matchers}
    names = (node.name,) if node.name else tuple(matchers.get("__name__", "").split("|"))
    return Selector(names, matchers, inside, ranged)
