"""Taking YAML documents apart, with complaints that name the file, the place in it and the mend.

Used for every file that a person writes: the table of engines, the static sources, the configuration.
"""

from __future__ import annotations

import difflib
import pathlib
from collections.abc import Iterator
from typing import Any, NoReturn, TypeVar

import yaml

from mx_exporter.errors import ConfigurationError

_T = TypeVar("_T")
#: libyaml's where PyYAML was built with it: a static file of 200 sources takes 40 ms in place of 230.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read(path: pathlib.Path, what: str) -> str:
    """The text of a file that the user named.

    Args:
        path: The file.
        what: What it should be, for the complaint: "a file of engines".

    Raises:
        ConfigurationError: It cannot be read.
    """
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise ConfigurationError(f"{path}: {why}: name {what} that can be read") from error


class Section:
    """A mapping of the document; each key is taken once and `finish` complains of what is left."""

    def __init__(self, source: str, path: str, value: object) -> None:
        self.source, self._path = source, path
        if not isinstance(value, dict):
            self.fail("must be a mapping")
        self._rest: dict[Any, Any] = dict(value)
        self._known: list[str] = []

    @classmethod
    def document(cls, text: str, source: str) -> Section:
        """The top of a YAML document; `source` is what complaints call it.

        Raises:
            ConfigurationError: It is not YAML, or no mapping.
        """
        try:
            return cls(source, "", yaml.load(text, Loader=_LOADER))  # noqa: S506 - a safe one
        except (yaml.YAMLError, ValueError, RecursionError, OverflowError, TypeError) as error:
            if isinstance(error, ConfigurationError):
                raise
            raise ConfigurationError(f"{source}: {_not_yaml(error, text)}: mend it") from error

    def fail(self, what: str, key: str | None = None) -> NoReturn:
        """Complain of this mapping or of one of its keys."""
        place = ".".join(part for part in (self._path, key) if part) or "the document"
        raise ConfigurationError(f"{self.source}: {_short(place, 120)}: {_short(what, 300)}")

    def _pop(self, key: str) -> Any:
        self._known.append(key)
        return self._rest.pop(key, None)

    def take(self, key: str, kind: type[_T], default: _T) -> _T:
        """The value of `key`, of exactly this kind (a bool is no int); the default where it is absent or null."""
        value = self._pop(key)
        if value is None:
            return default
        if type(value) is not kind:
            self.fail(f"must be {_KINDS.get(kind, kind.__name__)}", key)
        return value

    def text(self, key: str) -> str | None:
        """The text of `key`; None where it is absent."""
        return self.take(key, str, "") or None

    def number(self, key: str) -> float | None:
        """The number at `key`, whole or not (true and false are none); None where it is absent."""
        value = self._pop(key)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            self.fail("must be a number", key)
        return value

    def take_scalar(self, key: str) -> str | int | float | None:
        """A text or a number; None where it is absent."""
        value = self._pop(key)
        if value is not None and (isinstance(value, bool) or not isinstance(value, str | int | float)):
            self.fail("must be text or a number", key)
        return value

    def keys(self) -> tuple[str, ...]:
        """The keys that nobody took yet; each must be text."""
        if not all(isinstance(key, str) and key for key in self._rest):
            self.fail("must have names as its keys")
        return tuple(self._rest)

    def texts(self, key: str) -> tuple[str, ...]:
        """A text or a list of texts."""
        value = self._pop(key)
        items = value if isinstance(value, list) else [] if value is None else [value]
        if not all(isinstance(item, str) and item for item in items):
            self.fail("must be text or a list of texts", key)
        return tuple(items)

    def pairs(self, key: str) -> tuple[tuple[str, str], ...]:
        """A mapping of texts to texts, sorted."""
        pairs = self.take(key, dict, {})
        if not all(isinstance(part, str) for pair in pairs.items() for part in pair):
            self.fail("must map names to text (quote numbers and true or false)", key)
        return tuple(sorted(pairs.items()))

    def section(self, key: str) -> Section | None:
        """The mapping at `key`; None where it is absent."""
        value = self._pop(key)
        return None if value is None else Section(self.source, ".".join(filter(None, (self._path, key))), value)

    def sections(self, key: str) -> Iterator[Section]:
        """The mappings in the list at `key`."""
        for i, value in enumerate(self.take(key, list, [])):
            yield Section(self.source, ".".join(filter(None, (self._path, f"{key}[{i}]"))), value)

    def short(self, key: str, inner: str) -> Section | None:
        """The mapping at `key`, where a text alone stands for `{inner: text}`."""
        if isinstance(self._rest.get(key), str):
            self._rest[key] = {inner: self._rest[key]}
        return self.section(key)

    def finish(self) -> None:
        """Nothing may be left: what nobody took is a typing error.

        Raises:
            ConfigurationError: A key was not taken.
        """
        for key in self._rest:
            close = difflib.get_close_matches(str(key), self._known, n=1)
            mend = f"did you mean {close[0]}?" if close else f"remove it; known here: {', '.join(self._known)}"
            self.fail(f"is not known here: {mend}", str(key))


_KINDS: dict[type, str] = {str: "text", int: "a whole number", bool: "true or false", list: "a list", dict: "a mapping"}


def _not_yaml(error: Exception, text: str) -> str:
    """Where and why, without the parser's own names for the text and its places."""
    mark = getattr(error, "problem_mark", None)
    words = [getattr(error, name, None) for name in ("context", "problem", "reason")]
    why = ", ".join(filter(None, words)) or str(error)
    line = min(mark.line + 1, len(text.splitlines())) if mark else None  # the end is said to be a line further down
    return (f"line {line}: " if line else "") + f"not YAML ({_short(why, 200)})"


def _short(text: str, most: int) -> str:
    """One line of bounded length, whatever somebody wrote into the file."""
    line = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
    return line if len(line) <= most else f"{line[: most - 3]}..."
