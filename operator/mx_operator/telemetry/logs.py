"""Logs for people and machines: text or JSON, and one line a cause a minute however often it happens."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable
from typing import Final

_TEXT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_MINUTE: Final = 60.0
_MOST_CAUSES: Final = 1000


class OncePerMinute(logging.Filter):
    """Lets a cause through once a minute, and says how often it was held back in between.

    A cause is a logger, a level, a message's template and its first argument: which server, which policy.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._held: dict[tuple[str, int, str, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is shown; adds the count of those that were not."""
        if record.levelno < logging.WARNING:
            return True
        first = record.args[0] if isinstance(record.args, tuple) and record.args else ""
        cause = (record.name, record.levelno, str(record.msg), str(first))
        now = self._clock()
        since, held = self._held.get(cause, (float("-inf"), 0))
        if now - since < _MINUTE:
            self._held[cause] = (since, held + 1)
            return False
        if len(self._held) >= _MOST_CAUSES:
            self._held = {known: at for known, at in self._held.items() if now - at[0] < _MINUTE}
        self._held[cause] = (now, 0)
        if held:
            record.msg, record.args = f"{record.getMessage()} (and {held} more like it)", ()
        return True


class Json(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        content = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            content["error"] = self.formatException(record.exc_info)
        return json.dumps(content, ensure_ascii=False)


def configure(style: str, level: str) -> None:
    """Send all logs to stderr.

    Args:
        style: `text` or `json`.
        level: A level's name, such as `info`.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Json() if style == "json" else logging.Formatter(_TEXT))
    handler.addFilter(OncePerMinute())
    logging.basicConfig(handlers=[handler], level=level.upper(), force=True)
    for chatty in ("urllib3", "kopf", "aiohttp.access"):
        logging.getLogger(chatty).setLevel(max(logging.WARNING, logging.getLogger().level))
