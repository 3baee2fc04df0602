"""The environment, read where it is used: one function per variable, each pure given the mapping.

Names and defaults are the released client's where it has them. A value that cannot be used is the default (selection
runs inside somebody's weight load, where the worst answer is an exception) and says so once in the log.
"""

from __future__ import annotations

import importlib.metadata
import logging
import math
import threading
from collections.abc import Mapping
from typing import Final

logger = logging.getLogger("mx_selector")

Environment = Mapping[str, str]

DEFAULT_POLICY: Final = "random"
MAX_WEIGHT: Final = 1e6
_TRUTHY: Final = frozenset({"1", "true", "yes", "on"})

_MOST_SAID: Final = 1_000  # bounds memory, not the log

_said: set[str] = set()
_said_lock = threading.Lock()


def say_once(message: str, level: int = logging.WARNING, key: str | None = None) -> None:
    """Log `message` unless this process has done so before.

    Args:
        message: What happened and what is done about it.
        level: Of the log record.
        key: What makes two messages the same one, where their text varies.
    """
    with _said_lock:
        known = (key or message) in _said
        if not known and len(_said) < _MOST_SAID:
            _said.add(key or message)
    if not known:
        logger.log(level, message)


def forget_threads() -> None:
    """In a forked child: a lock that another thread of the parent held would never be given up here."""
    global _said_lock
    _said_lock = threading.Lock()


def version() -> str:
    """The installed version of this project; `unknown` where it runs from bare sources."""
    try:
        return importlib.metadata.version("mx-source-load")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def flag(environ: Environment, name: str) -> bool:
    """Whether the variable says yes: 1, true, yes or on in any case."""
    return environ.get(name, "").strip().lower() in _TRUTHY


def number(environ: Environment, name: str, default: float, low: float, high: float) -> float:
    """The variable as a number clamped to [low, high]; `default` when unset or not a finite number."""
    value = finite(environ, name, f"using {default:g}")
    return default if value is None else min(high, max(low, value))


def finite(environ: Environment, name: str, otherwise: str) -> float | None:
    """The variable as a finite number; None when it is unset, or is none (then the log tells what is done instead)."""
    raw = environ.get(name)
    if raw is None or not raw.strip():
        return None
    try:
        value = float(raw)
    except ValueError:
        value = math.nan
    if math.isfinite(value):
        return value
    say_once(f"{name}={raw!r} is not a finite number; {otherwise}")
    return None


def policy_name(environ: Environment) -> str:
    """`MX_P2P_SOURCE_SELECTOR`; `random` when unset or empty."""
    return environ.get("MX_P2P_SOURCE_SELECTOR") or DEFAULT_POLICY


def load_weight(environ: Environment) -> float:
    """`MX_P2P_LOAD_WEIGHT` in [0, 1e6]; 1 by default. Above that, doubles no longer hold hash and load at once."""
    return number(environ, "MX_P2P_LOAD_WEIGHT", 1.0, 0.0, MAX_WEIGHT)


def unknown_load(environ: Environment) -> float:
    """`MX_P2P_UNKNOWN_LOAD` in [0, 1]: what `load_aware` assumes of a source without a reading; 0.5 by default."""
    return number(environ, "MX_P2P_UNKNOWN_LOAD", 0.5, 0.0, 1.0)


def metrics_port(environ: Environment) -> int:
    """`MX_METRICS_PORT`, 9402 by default; 0 serves nothing."""
    value = finite(environ, "MX_METRICS_PORT", "using 9402")
    if value is not None and not (value == int(value) and 0 <= value <= 65_535):
        say_once(f"MX_METRICS_PORT={environ['MX_METRICS_PORT']!r} is no port; using 9402")
        value = None
    return 9402 if value is None else int(value)


def bind_retry_seconds(environ: Environment) -> float:
    """`MX_METRICS_BIND_RETRY_SECS` in [0.1, 3600]; 15 by default: how often a port taken by something else is tried."""
    return number(environ, "MX_METRICS_BIND_RETRY_SECS", 15.0, 0.1, 3_600.0)
