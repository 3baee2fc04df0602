"""One query that answers with values and with the times of the samples behind them, and how to take it apart.

An instant query's own timestamp is when it was evaluated, not when a sample was scraped: a source whose exporter
died minutes ago may still answer with its last value. So each signal asks for both at once, told apart by a label.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Final

from mx_operator.core.model import Sample
from mx_operator.policies.spec import Signal
from mx_operator.prometheus.errors import PrometheusError

_MARK: Final = "__sig"
_LabelSet = tuple[tuple[str, str], ...]


def combined(signal: Signal) -> str:
    """The PromQL of a signal: its values marked `v`, their sample times marked `t`."""
    times = signal.freshness_query or f"timestamp({_own_lines(signal.query)})"
    return f"{_marked(signal.query, 'v')} or {_marked(times, 't')}"


def _marked(query: str, what: str) -> str:
    return f'label_replace({_own_lines(query)},"{_MARK}","{what}","","")'


def _own_lines(query: str) -> str:
    """A query may end in a comment, which must not swallow what follows."""
    return f"(\n{query.strip()}\n)"


def samples(result: Sequence[Any], most_series: int) -> list[Sample]:
    """Take the answer apart.

    Args:
        result: Of a vector answer: `{"metric": {...}, "value": [evaluated_at, "text"]}` each.
        most_series: How many values are still credible.

    Returns:
        One sample per series; a value that cannot be read as a number is NaN, a sample without a time has age NaN.

    Raises:
        PrometheusError: It is something else, or too many.
    """
    values: list[tuple[dict[str, str], Any, float]] = []
    times: dict[_LabelSet, float] = {}
    try:
        for series in result:
            labels, (evaluated_at, text) = series["metric"], series["value"]
            kind = labels.pop(_MARK, None)
            labels.pop("__name__", None)
            if kind == "v":
                values.append((labels, text, float(evaluated_at)))
            elif kind == "t":
                times[_set(labels)] = number(text)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise PrometheusError("NotAVector", "the answer is not an instant vector") from error
    if len(values) > most_series:
        message = f"{len(values)} series are more than the {most_series} this reads: aggregate in the query"
        raise PrometheusError("TooManySeries", message)
    return list(_paired(values, times))


def _paired(values: Iterable[tuple[dict[str, str], Any, float]], times: dict[_LabelSet, float]) -> Iterable[Sample]:
    for labels, text, evaluated_at in values:
        yield Sample(labels, number(text), evaluated_at - times.get(_set(labels), math.nan))


def _set(labels: dict[str, str]) -> _LabelSet:
    return tuple(sorted(labels.items()))


def number(text: object) -> float:
    """A sample value, which JSON carries as text; NaN for what is none."""
    try:
        return float(text)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return math.nan
