"""The folder in which the ranks of one pod put their values, so that one of them can serve all.

Each process owns a file of values, replaced whole after each record, and holds a lock on a second file while it lives.
The kernel drops the lock however the process ends, which is how others know; the values stay. Locks are POSIX record
locks: they do not pass to forked children, and they work across the PID namespaces of a pod's containers.
"""

from __future__ import annotations

import fcntl
import json
import os
import pathlib
import secrets
import stat
from typing import Final

from mx_selector.telemetry import values
from mx_selector.telemetry.families import Kind
from mx_selector.telemetry.values import Snapshot

_GONE: Final = "gone.json"
_REMEMBERED: Final = 1_000  # names of ended processes


class Spool:
    """This process' place in the folder; waits while another process takes its own.

    Args:
        folder: Made when missing.
        kinds: Kind of each family by name.
        shared: Take the folder as it is, such as a volume owned by root; else it must belong to this user.

    Raises:
        OSError: The folder cannot be made, or belongs to somebody else.
    """

    def __init__(self, folder: pathlib.Path, kinds: dict[str, Kind], *, shared: bool = False) -> None:
        self._folder, self._kinds = folder, kinds
        self._name = f"rank-{os.getpid()}-{secrets.token_hex(4)}"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not shared:
            _check_ours(folder)
        mutex = locked(folder / "mutex")  # one at a time joins
        try:
            self._sweep()
            self._lock = locked(folder / f"{self._name}.lock")
            self.write({})
        finally:
            os.close(mutex)

    def write(self, snapshot: Snapshot) -> None:
        """Replace this process' values.

        Raises:
            OSError: The folder is full or gone.
        """
        self._replace(f"{self._name}.json", {"values": values.dump(snapshot)})

    def others(self) -> list[Snapshot]:
        """The values of all other processes of this run; of ended ones what adds up, not what described them.

        Takes no lock, so that nobody's joining delays a scrape: what is folded meanwhile is dropped by its name.
        """
        names = [name for name in self._members() if name != self._name]
        read = {name: self._read(name) if self._lives(name) else self._remains(name) for name in names}
        gone, absorbed = self._gone()  # last: it holds whatever vanished since the names were listed
        return [gone, *(snapshot for name, snapshot in read.items() if name not in absorbed)]

    def close(self) -> None:
        """Give up the place, as ending the process would; in a forked child, which has none, only close the file."""
        os.close(self._lock)

    def _sweep(self) -> None:
        """Before joining: start over where nobody lives, else fold those who ended into one file."""
        names = self._members()
        ended = [name for name in names if not self._lives(name)]
        if len(ended) == len(names):
            (self._folder / _GONE).unlink(missing_ok=True)
        elif ended:
            self._fold(ended)
        for name in ended:
            for suffix in (".json", ".lock"):
                (self._folder / f"{name}{suffix}").unlink(missing_ok=True)
            for unfinished in self._folder.glob(f"{name}.json.*.new"):
                unfinished.unlink(missing_ok=True)

    def _fold(self, ended: list[str]) -> None:
        gone, absorbed = self._gone()
        fresh = [name for name in ended if name not in absorbed]
        total = values.merge([gone, *(self._remains(name) for name in fresh)], self._kinds)
        # The names go with the sum: neither a crash before the files are deleted nor a scrape in between counts twice.
        self._replace(_GONE, {"values": values.dump(total), "absorbed": [*absorbed, *fresh][-_REMEMBERED:]})

    def _members(self) -> list[str]:
        return sorted(path.stem for path in self._folder.glob("rank-*.lock"))

    def _lives(self, name: str) -> bool:
        """Whether somebody holds the lock. Never ask for our own: closing the file would drop it."""
        try:
            file = os.open(self._folder / f"{name}.lock", os.O_RDWR)
        except OSError:
            return False
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(file)
        return False

    def _read(self, name: str) -> Snapshot:
        return self._load(f"{name}.json")[0]

    def _remains(self, name: str) -> Snapshot:
        return values.without_gauges(self._read(name), self._kinds)

    def _gone(self) -> tuple[Snapshot, list[str]]:
        return self._load(_GONE)

    def _load(self, name: str) -> tuple[Snapshot, list[str]]:
        """A file's values; none where it is missing or spoilt, which costs that process' values only."""
        try:
            content = json.loads((self._folder / name).read_text(encoding="utf-8"))
            return values.load(content["values"]), content.get("absorbed", [])
        except (OSError, ValueError, TypeError, KeyError):
            return {}, []

    def _replace(self, name: str, content: object) -> None:
        new = self._folder / f"{name}.{os.getpid()}.new"
        new.write_text(json.dumps(content), encoding="utf-8")
        new.replace(self._folder / name)


def locked(path: pathlib.Path) -> int:
    """An open file on which this process holds the lock; waits for it. Closing the file gives it up."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.lockf(file, fcntl.LOCK_EX)
    return file


def _check_ours(folder: pathlib.Path) -> None:
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise PermissionError(f"{folder} belongs to somebody else: name a folder in MX_METRICS_DIR")
