"""How pages are fetched: plain values that the configuration makes and the scraper follows."""

from __future__ import annotations

import dataclasses
import pathlib


@dataclasses.dataclass(frozen=True, slots=True)
class ScrapeSettings:
    """Limits and credentials of scraping. Seconds and bytes throughout."""

    interval: float = 2.0
    timeout: float = 1.0  # of one page, everything included
    max_page: int = 16 << 20  # after decompression; a longer page is no page
    max_line: int = 64 << 10  # a longer line is passed over
    max_backoff: float = 10.0  # between two attempts at a target that fails
    #: A reading outlives failed scrapes by this many intervals, then it is unknown.
    keep_intervals: float = 3.0
    #: A busy engine whose every number stands still for this long is frozen, and its usage unknown.
    freeze_after: float = 60.0
    ca_file: pathlib.Path | None = None  # for https pages; None: the system's
    server_name: str | None = None  # the name their certificates bear; None: the pod's address
    insecure_skip_verify: bool = False
    bearer_token_file: pathlib.Path | None = None  # read again when it changes
    #: The token goes only to pages whose certificate was verified, unless this says otherwise.
    bearer_over_http: bool = False
    gauges_file: pathlib.Path | None = None  # engines of the user's own, beside the built-in table
