"""Reading typed fields out of untrusted mappings, collecting every error on the way instead of stopping at the first.

Only `validation` uses this. A field that is absent or null takes its default, as in Kubernetes.
"""

from __future__ import annotations

import difflib
import enum
import math
from collections.abc import Mapping
from typing import Any, TypeVar

from mx_operator.policies import durations
from mx_operator.policies.findings import Finding, Severity

_Choice = TypeVar("_Choice", bound=enum.Enum)


class Findings:
    """The remarks of one reading, in the order they were made."""

    def __init__(self) -> None:
        self.all: list[Finding] = []

    def error(self, field: str, problem: str, fix: str) -> None:
        """Note something that makes the policy unusable."""
        self.all.append(Finding(field, problem, fix))

    def warning(self, field: str, problem: str, fix: str) -> None:
        """Note something that will disappoint."""
        self.all.append(Finding(field, problem, fix, Severity.WARNING))

    def of(self, severity: Severity) -> list[Finding]:
        """The remarks of one severity."""
        return [finding for finding in self.all if finding.severity is severity]


class Section:
    """One mapping of a policy and its path; unread keys are reported by `finish`."""

    def __init__(self, content: object, path: str, findings: Findings) -> None:
        self.path = path
        self.findings = findings
        self._read: list[str] = []
        self.content: Mapping[str, Any] = {}
        if isinstance(content, Mapping):
            self.content = content
        elif content is not None:
            findings.error(path, f"is {_kind(content)}, not a mapping", "write its fields below it, indented")

    def at(self, key: str) -> str:
        """The path of a field of this section."""
        return f"{self.path}.{key}" if self.path else key

    def has(self, key: str) -> bool:
        """Whether the field is there at all."""
        return self.content.get(key) is not None

    def take(self, key: str) -> Any:
        """The raw value of a field, or None."""
        self._read.append(key)
        return self.content.get(key)

    def section(self, key: str) -> Section:
        """The mapping in a field; empty when it is absent."""
        return Section(self.take(key), self.at(key), self.findings)

    def text(self, key: str) -> str | None:
        """A string that is not blank, or None."""
        value = self.take(key)
        if value is None:
            return None
        if not isinstance(value, str):
            self.findings.error(self.at(key), f"is {_kind(value)}, not text", 'put it in quotes: "..."')
            return None
        if not value.strip():
            self.findings.error(self.at(key), "is empty", "give it a value or leave the field out")
            return None
        return value.strip()

    def required(self, key: str, fix: str) -> str:
        """A string that has to be there; empty after an error."""
        if not self.has(key):
            self._read.append(key)
            self.findings.error(self.at(key), "is missing", fix)
            return ""
        return self.text(key) or ""

    def choice(self, key: str, default: _Choice) -> _Choice:
        """One of the values of an enumeration."""
        value = self.take(key)
        if value is None:
            return default
        kind = type(default)
        for member in kind:
            if member.value == value and isinstance(value, str):
                return member
        self.findings.error(self.at(key), f"is {value!r}", "use " + " or ".join(member.value for member in kind))
        return default

    def number(self, key: str, default: float, low: float, high: float) -> float:
        """A finite number from `low` to `high`."""
        value = self.take(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            self.findings.error(self.at(key), f"is {value!r}, not a number", f"write one from {low:g} to {high:g}")
            return default
        if not low <= value <= high:
            self.findings.error(self.at(key), f"is {value:g}", f"write a number from {low:g} to {high:g}")
            return default
        return float(value)

    def integer(self, key: str, default: int, low: int, high: int) -> int:
        """A whole number from `low` to `high`."""
        value = self.take(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            self.findings.error(self.at(key), f"is {value!r}", f"write a whole number from {low} to {high}")
            return default
        return value

    def seconds(self, key: str, default: float, low: float, high: float) -> float:
        """A duration from `low` to `high` seconds."""
        given = self.optional_seconds(key, low, high)
        return default if given is None else given

    def optional_seconds(self, key: str, low: float, high: float) -> float | None:
        """As `seconds`, or None where it is absent or wrong."""
        value = self.take(key)
        if value is None:
            return None
        span = f"from {durations.show(low)} to {durations.show(high)}"
        if not isinstance(value, str):
            example = f'"{value}s"' if isinstance(value, int) and not isinstance(value, bool) else '"40s"'
            self.findings.error(
                self.at(key), f"is {value!r} without a unit", f"write a duration {span}, such as {example}"
            )
            return None
        try:
            seconds = durations.parse(value)
        except ValueError as error:
            self.findings.error(self.at(key), str(error), f'write one {span}, such as "40s" or "1m30s"')
            return None
        if not low <= seconds <= high:
            self.findings.error(self.at(key), f"is {value}", f"write a duration {span}")
            return None
        return seconds

    def items(self, key: str) -> list[object]:
        """The entries of a list; empty when it is absent."""
        value = self.take(key)
        if value is None:
            return []
        if not isinstance(value, list | tuple):
            self.findings.error(self.at(key), f"is {_kind(value)}, not a list", 'start each entry with "- "')
            return []
        return list(value)

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of strings."""
        values = self.items(key)
        for index, value in enumerate(values):
            if not isinstance(value, str) or not value.strip():
                self.findings.error(f"{self.at(key)}[{index}]", f"is {_kind(value)}", "write text that is not empty")
        return tuple(value for value in values if isinstance(value, str) and value.strip())

    def finish(self) -> None:
        """Report the fields that nothing read."""
        for key in self.content:
            if key not in self._read:
                close = difflib.get_close_matches(str(key), self._read, n=1)
                fix = f"did you mean {close[0]}?" if close else f"remove it; known here: {', '.join(self._read)}"
                self.findings.error(self.at(str(key)), "is not a field of this resource", fix)


def _kind(value: object) -> str:
    names = {bool: "true or false", int: "a number", float: "a number", str: "text", list: "a list", dict: "a mapping"}
    return names.get(type(value), f"a {type(value).__name__}")
