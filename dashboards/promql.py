"""The expressions that dashboards and rules share: pure functions from names to PromQL.

Two facts of this field shape them. A worker pulls once, at its start, and its counters appear with their first
increment: `increase()` of a counter that is born at 1 is 0, so pulls are counted by `pulled`. And a fleet has thousands
of sources: `leading` picks the few series that a graph can show by one look at the range's end, so that the pick does
not change from step to step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

#: What every selector of a dashboard carries, as Grafana's own linter asks.
JOB: Final = 'job=~"$job"'
#: Over how long pulls are counted.
WINDOW: Final = "5m"
#: How many lines a graph shows at most.
LINES: Final = 15


def select(metric: str, *matchers: str, **equal: str) -> str:
    """A selector of a dashboard: `metric{job=~"$job", ...}`.

    Args:
        metric: Its name; empty where a matcher says which.
        matchers: As PromQL has them.
        equal: Labels that have to have a value.
    """
    wanted = [JOB, *matchers, *(f'{label}="{value}"' for label, value in equal.items())]
    return f"{metric}{{{', '.join(wanted)}}}"


def named(*metrics: str) -> str:
    """A matcher for any of these metrics."""
    return f'__name__=~"{"|".join(metrics)}"'


def pulled(selector: str, window: str = WINDOW) -> str:
    """How much each counter of `selector` grew within `window`; one that was born within it grew from 0.

    A counter that began anew counts as nothing (it cannot be told what it lost), never as a negative number.
    """
    return f"clamp_min(({selector} - {selector} offset {window}) or {selector}, 0)"


def total(by: Sequence[str], expression: str) -> str:
    """Sum by labels."""
    return f"sum by ({', '.join(by)}) ({expression})" if by else f"sum({expression})"


def greatest(by: Sequence[str], expression: str) -> str:
    """Maximum by labels: one value where two replicas say the same."""
    return f"max by ({', '.join(by)}) ({expression})"


def quantile(q: float, by: Sequence[str], buckets: str) -> str:
    """A quantile of a histogram's buckets, by labels beside `le`."""
    return f"histogram_quantile({q:g}, {total((*by, 'le'), buckets)})"


def leading(expression: str, key: Sequence[str], by: str = "") -> str:
    """The series of `expression` that were highest within the last hour of the shown range, at most `LINES`.

    Fifteen looks, four minutes apart, decide, all before the range's end, so the same series are shown at every step.

    Args:
        expression: What is shown.
        key: Labels that identify a series of it.
        by: What decides, where `expression` carries more than that needs.
    """
    best = f"topk({LINES}, max_over_time(({by or expression})[1h:4m] @ end()))"
    return f"({expression}) and on ({', '.join(key)}) {best}"


def known(expression: str) -> str:
    """Without what is NaN: a quantile or a share of nothing."""
    return f"{expression} >= 0"


def nonzero(expression: str) -> str:
    """Without what is 0: stacked, it would draw its colour's line on top of what is there."""
    return f"{expression} > 0"


def cumulative(expression: str, bounds: Sequence[str]) -> str:
    """How many series of a gauge are at most each bound, as the buckets of a histogram (label `le`)."""
    return " or ".join(f'label_replace(sum({expression} <= bool {bound}), "le", "{bound}", "", "")' for bound in bounds)
