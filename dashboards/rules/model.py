"""The nouns of rules: frozen values that `rendering` turns into files."""

from __future__ import annotations

import dataclasses
import enum


class Severity(enum.Enum):
    """Who is woken."""

    CRITICAL = "critical"  # now: serving is being hurt
    WARNING = "warning"  # in working hours: protection is lost, nothing is hurt yet
    INFO = "info"  # worth knowing while looking at something else


@dataclasses.dataclass(frozen=True, slots=True)
class Recording:
    """A recording rule.

    Attributes:
        name: `mx:<metric>:<what was done>`.
        expr: PromQL.
        labels: Added to what the expression gives.
    """

    name: str
    expr: str
    labels: tuple[tuple[str, str], ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Alert:
    """An alert.

    Attributes:
        name: `Mx` and what is wrong; its runbook is the page of that name.
        expr: PromQL; its value is the one that the description names.
        lasting: How long it has to hold (`for`).
        severity: Who is woken.
        summary: One line, no value.
        description: What is wrong with which value, and what it does to targets; Prometheus' templates allowed.
    """

    name: str
    expr: str
    lasting: str
    severity: Severity
    summary: str
    description: str


@dataclasses.dataclass(frozen=True, slots=True)
class Group:
    """Rules that are evaluated together."""

    name: str
    interval: str
    rules: tuple[Recording | Alert, ...]
    runbooks: str = ""
