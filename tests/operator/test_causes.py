"""What is at the bottom of a library's error: the cause alone, in a person's words."""

from __future__ import annotations

import ssl

import pytest
import requests
import urllib3

from mx_operator.prometheus.errors import cause

_POOL = urllib3.HTTPSConnectionPool("prometheus", 9090)
_TLS = ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong version number (_ssl.c:1006)")


def wrapped(inner: Exception) -> Exception:
    """As requests and urllib3 hand an error on."""
    return requests.ConnectionError(urllib3.exceptions.MaxRetryError(_POOL, "/api/v1/query", inner))


def circular() -> Exception:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    return first


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (wrapped(ConnectionRefusedError(111, "Connection refused")), "Connection refused"),
        (wrapped(urllib3.exceptions.SSLError(_TLS)), "wrong version number"),
        (
            requests.ConnectionError(urllib3.exceptions.ProtocolError("Connection aborted.", EOFError("it\nended"))),
            "it ended",
        ),
        (requests.exceptions.InvalidURL("no host given"), "no host given"),
        (requests.Timeout(), "Timeout"),
        (circular(), "second"),
        (ValueError("x" * 1000), "x" * 300),
    ],
)
def test_the_cause_alone_is_said(error: Exception, said: str) -> None:
    assert cause(error) == said
