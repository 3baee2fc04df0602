"""One query that answers with values and with the times of the samples behind them, and how to take it apart.

An instant query's own timestamp is when it was evaluated, not when a sample was scraped: a source whose exporter
died minutes ago may still answer with its last value. So each signal asks for both at once, told apart by a label.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from mx_operator.core.joins import labels_used
from mx_operator.core.model import Sample
from mx_operator.policies.spec import Signal
from mx_operator.prometheus.errors import PrometheusError

_MARK: Final = "__sig"


def combined(signal: Signal) -> str:
    """The PromQL of a signal: its values marked `v`, their sample times marked `t`."""
    times = signal.freshness_query or f"timestamp({_own_lines(signal.query)})"
    return f"{_marked(signal.query, 'v')} or {_marked(times, 't')}"


def _marked(query: str, what: str) -> str:
    return f'label_replace({_own_lines(query)},"{_MARK}","{what}","","")'


def _own_lines(query: str) -> str:
    """A query may end in a comment, which must not swallow what follows."""
    return f"(\n{query.strip()}\n)"


class LabelSet(NamedTuple):
    """What is kept of a series' labels while an answer is parsed: ten thousand whole ones are 25 MB.

    Attributes:
        identity: Of all labels together but the metric's name and the mark: pairs a value with its time.
        mark: `v` or `t`.
        used: The labels that joins look at.
    """

    identity: int
    mark: str
    used: dict[str, str]


def reader(signal: Signal) -> Callable[[dict[str, Any]], Any]:
    """A JSON object hook that turns the labels of a marked series into a `LabelSet` at once."""
    keep = labels_used(signal)

    def read(content: dict[str, Any]) -> Any:
        mark = content.pop(_MARK, None)
        if mark is None:
            return content
        content.pop("__name__", None)
        used = {name: value for name, value in content.items() if name in keep}
        return LabelSet(hash(frozenset(content.items())), mark, used)

    return read


def samples(result: Sequence[Any], most_series: int) -> list[Sample]:
    """Take the answer apart.

    Args:
        result: Of a vector answer, read with `reader`: `{"metric": LabelSet, "value": [evaluated_at, "text"]}` each.
        most_series: How many values are still credible.

    Returns:
        One sample per series; a value that cannot be read as a number is NaN, a sample without a time has age NaN.

    Raises:
        PrometheusError: It is something else, or too many.
    """
    values: list[tuple[LabelSet, Any, float]] = []
    times: dict[int, float] = {}
    try:
        for series in result:
            labels, (evaluated_at, text) = series["metric"], series["value"]
            if labels.mark == "v":
                values.append((labels, text, float(evaluated_at)))
            else:
                times[labels.identity] = number(text)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise PrometheusError("NotAVector", "the answer is not an instant vector") from error
    if len(values) > most_series:
        message = f"{len(values)} series are more than the {most_series} this reads: aggregate in the query"
        raise PrometheusError("TooManySeries", message)
    return [
        Sample(labels.used, number(text), evaluated_at - times.get(labels.identity, math.nan))
        for labels, text, evaluated_at in values
    ]


def number(text: object) -> float:
    """A sample value, which JSON carries as text; NaN for what is none."""
    try:
        return float(text)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return math.nan
