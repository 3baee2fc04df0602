"""How scraping each page goes; what the `mx_exporter_target_*` metrics are made from."""

from __future__ import annotations

import dataclasses

from mx_exporter.model import Pod


@dataclasses.dataclass(frozen=True, slots=True)
class ScrapeStatus:
    """The last scrape of one port of one pod."""

    pod: Pod
    port: int
    up: bool  # a page with at least one gauge we know was read, whole
    duration: float  # seconds the last attempt took
    reason: str | None  # why it is not up; one of a fixed set of words
    at: float  # when the last attempt ended, monotonic seconds
    bad_lines: int = 0  # lines of wanted metrics that could not be read, on all pages since the target appeared
