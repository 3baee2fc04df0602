"""Secrets that live in files and change there: read when they are needed, never kept for good."""

from __future__ import annotations

import contextlib
import os
import pathlib


class TokenFile:
    """A bearer token in a file, read again when the file changes (Kubernetes renews its tokens every hour)."""

    def __init__(self, path: pathlib.Path | None) -> None:
        self._path, self._stamp, self._value = path, (0, 0), ""

    def read(self) -> str:
        """The token; the last known one while the file cannot be read; empty without a file."""
        if self._path is not None:
            with contextlib.suppress(OSError, UnicodeDecodeError):
                status = os.stat(self._path)
                stamp = (status.st_mtime_ns, status.st_ino)
                if stamp != self._stamp:
                    self._value, self._stamp = self._path.read_text("utf-8").strip(), stamp
        return self._value

    def header(self) -> dict[str, str]:
        """The Authorization header; none without a token, or with one that no header can carry."""
        token = self.read()
        return {"Authorization": f"Bearer {token}"} if token and token.isascii() and token.isprintable() else {}
