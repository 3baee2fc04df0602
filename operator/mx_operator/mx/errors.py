"""What the seam to MX servers raises.

MxError
├── DeniedError
└── RefusedError
"""

from __future__ import annotations


class MxError(Exception):
    """A call that did not do what it was for.

    Attributes:
        reason: One CamelCase word for conditions: a gRPC status such as `Unavailable`.
    """

    def __init__(self, reason: str, message: str) -> None:
        self.reason = reason
        super().__init__(message)


class DeniedError(MxError):
    """The server does not accept our credentials; it did nothing."""


class RefusedError(MxError):
    """The server answered a write with success=false; it stored nothing, or its backend failed in doing so."""
