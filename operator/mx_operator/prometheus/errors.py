"""What the seam to Prometheus raises.

PrometheusError
"""

from __future__ import annotations


class PrometheusError(Exception):
    """A query that gave no complete answer.

    Attributes:
        reason: One CamelCase word for conditions, such as `PartialResponse`, `Timeout`, `HTTP503`.
    """

    def __init__(self, reason: str, message: str) -> None:
        self.reason = reason
        super().__init__(message)
