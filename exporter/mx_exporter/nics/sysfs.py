"""The seam to the kernel's file systems: short files, names in a folder, symbolic links, and why one cannot be read.

Every file is opened, read and closed each time: a file kept open goes on answering for a device that is gone. A whole
host's tree must be under the root (class entries are links into `devices/`, node_exporter#2427).
"""

from __future__ import annotations

import errno
import os
import pathlib

_LONGEST = 4096  # a sysfs attribute is at most a page

_REASONS = {
    errno.ENOENT: "missing",
    errno.ENOTDIR: "missing",
    errno.EINVAL: "invalid_argument",  # the driver does not know this counter (node_exporter#3265, procfs#675)
    errno.EPERM: "denied",
    errno.EACCES: "denied",
    errno.EOPNOTSUPP: "unsupported",
    errno.ENODEV: "gone",
    errno.ENXIO: "gone",
    errno.ETIMEDOUT: "timeout",
}


class UnreadableError(Exception):
    """A file or folder could not be read; `reason` is one of a fixed set of words."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def reason_of(error: OSError) -> str:
    """The word for an operating system error: `missing`, `denied`, `gone`, ...; `io_error` for all others."""
    return _REASONS.get(error.errno or 0, "io_error")


class Tree:
    """A sysfs (or procfs) root. Paths are relative to it and use `/`."""

    def __init__(self, root: pathlib.Path | str) -> None:
        self.root = str(root)

    def read(self, path: str) -> str:
        """The text of a short file, stripped; bytes that are no text become replacement characters.

        Raises:
            UnreadableError: With the reason.
        """
        try:
            # O_NONBLOCK: a file that is no attribute must not be waited for.
            descriptor = os.open(f"{self.root}/{path}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                return os.read(descriptor, _LONGEST).decode("ascii", "replace").strip()
            finally:
                os.close(descriptor)
        except OSError as error:
            raise UnreadableError(reason_of(error)) from None

    def text(self, path: str) -> str | None:
        """As `read`, for files that need not be there: None when it cannot be read."""
        try:
            return self.read(path)
        except UnreadableError:
            return None

    def names(self, path: str) -> tuple[str, ...]:
        """The names in a folder, sorted.

        Raises:
            UnreadableError: With the reason.
        """
        try:
            return tuple(sorted(os.listdir(f"{self.root}/{path}")))
        except OSError as error:
            raise UnreadableError(reason_of(error)) from None

    def inside(self, path: str) -> tuple[str, ...]:
        """As `names`, for folders that need not be there: empty when it cannot be read."""
        try:
            return self.names(path)
        except UnreadableError:
            return ()

    def exists(self, path: str) -> bool:
        """Whether there is something at this path."""
        return os.path.exists(f"{self.root}/{path}")

    def target(self, path: str) -> tuple[str, ...]:
        """The parts of the path that a link leads to, relative to the root; empty when it leads nowhere inside it."""
        try:
            real = os.path.realpath(f"{self.root}/{path}", strict=True)
        except OSError:
            return ()
        root = os.path.realpath(self.root).rstrip("/") + "/"
        return tuple(real[len(root) :].split("/")) if real.startswith(root) else ()

    def inode(self, path: str) -> int | None:
        """The inode behind a path; sysfs gives a device that comes back a new one."""
        try:
            return os.stat(f"{self.root}/{path}").st_ino
        except OSError:
            return None
