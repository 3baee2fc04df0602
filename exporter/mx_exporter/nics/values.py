"""Texts of sysfs files to numbers, believing nothing: what is not exactly a number is a reason."""

from __future__ import annotations

import math
import re

GIGABIT = 125_000_000.0  # bytes

# "400 Gb/sec (4X NDR)", "2.5 Gb/sec (1X SDR)", "10 Gb/sec (4X)", "0 GB/sec" (procfs#361). Only the leading number
# counts; the words behind it differ by driver and age. Kernel: drivers/infiniband/core/sysfs.c, rate_show().
_RATE = re.compile(r"(\d{1,7}(?:\.\d{1,6})?)\s*G[bB](?:/s|ps)(?:ec)?\b(?:\s*\(\d+X\s*(\w*)\))?", re.ASCII)
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]")
_LARGEST = 2**64 - 1
# PortCounters of devices without 64-bit counters stop here and stay (IB_PMA_CLASS_CAP_EXT_WIDTH absent).
SATURATED = 2**32 - 1


def parse_rate(text: str) -> tuple[float, str] | None:
    """Bytes a second in each direction and the speed's name (`NDR`, or "" where there is none).

    None when the text is no rate, or a rate of zero (an empty cage).
    """
    match = _RATE.match(text)
    if match is None:
        return None
    rate = float(match[1]) * GIGABIT
    return (rate, match[2] or "") if math.isfinite(rate) and rate > 0 else None


def parse_state(text: str) -> bool | None:
    """Whether a port's `state` says ACTIVE (`4: ACTIVE`); None when it says nothing readable."""
    number, colon, _ = text.partition(":")
    if not colon or number not in {"0", "1", "2", "3", "4", "5"}:
        return None
    return number == "4"


def parse_count(text: str) -> int | str:
    """A counter's value, or the reason why the text is none: `no_pma` or `malformed`."""
    if text.isascii() and text.isdigit() and len(text) <= 20:
        value = int(text)
        return value if value <= _LARGEST else "malformed"
    return "no_pma" if text.startswith("N/A") else "malformed"


def is_pci_address(text: str) -> bool:
    """Whether a text is a full PCI address in lower case (0000:1b:00.0)."""
    return _ADDRESS.fullmatch(text) is not None


def parse_integer(text: str | None) -> int | None:
    """A small number that may be negative, like `speed` or `numa_node`; None when it is none."""
    if text is None or not re.fullmatch(r"-?\d{1,9}", text, re.ASCII):
        return None
    return int(text)
