"""What is wrong with a policy, said once for every field: where, what, and how to mend it.

PolicyError (a ValueError)
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Sequence


class Severity(enum.Enum):
    """An ERROR makes the policy unusable; a WARNING is a policy that will disappoint."""

    ERROR = "error"
    WARNING = "warning"


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """One remark about one field.

    Attributes:
        field: Path as a user would write it, such as `spec.signals[0].query`.
        problem: What is wrong, without a full stop.
        fix: What to write instead, in the imperative.
    """

    field: str
    problem: str
    fix: str
    severity: Severity = Severity.ERROR

    def __str__(self) -> str:
        return f"{self.field}: {self.problem}; {self.fix}"


class PolicyError(ValueError):
    """A policy that cannot be used, with everything that is wrong with it.

    Attributes:
        subject: What was read: a policy's name, or a file's.
        findings: Every error, in the order of the fields.
    """

    def __init__(self, subject: str, findings: Sequence[Finding]) -> None:
        self.subject = subject
        self.findings = tuple(findings)
        super().__init__(f"{subject}: " + " | ".join(str(finding) for finding in self.findings))
