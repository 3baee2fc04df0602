"""The metric families of the selector: names, labels and buckets, and nothing else.

`mx_p2p_*` and `mx_build_info` are the released client's (its `metrics.py`), so that one dashboard serves both;
`mx_selector_*` are ours and carry no label of a single source. The sinks turn these into whatever they feed.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import Final


class Kind(enum.Enum):
    """How values of a family add up."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclasses.dataclass(frozen=True, slots=True)
class Family:
    """One metric family.

    Attributes:
        name: In Prometheus form, with its unit and without `_total`.
        kind: Counter, gauge or histogram.
        help: One sentence.
        labels: Names, in the order in which updates give the values.
        buckets: Upper bounds of a histogram, without infinity.
        unit: `s` for seconds, else empty: what OpenTelemetry is told.
    """

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    unit: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Update:
    """One thing to record: an increment of a counter, an observation, or a gauge's new value.

    A gauge's value of None takes back all its series: what is no longer true must not stay on the page.
    """

    family: Family
    labels: tuple[str, ...]
    value: float | None = 1.0


LIST_SOURCES: Final = Family(
    "mx_p2p_list_sources",
    Kind.COUNTER,
    "Listings of sources by result: ok, empty (the server has no source of this identity) or error.",
    ("policy", "scheme", "result"),
)
CANDIDATES: Final = Family(
    "mx_p2p_candidates",
    Kind.HISTOGRAM,
    "Candidates left at a stage of selection: listed, rank_matched, accelerator_matched.",
    ("policy", "scheme", "stage"),
    (0, 1, 2, 4, 8, 16, 32, 64, 128),
)
SELECTION_SECONDS: Final = Family(
    "mx_p2p_source_selection_seconds",
    Kind.HISTOGRAM,
    "Time to order the candidates.",
    ("policy", "scheme"),
    (1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0),
    "s",
)
SELECTIONS: Final = Family(
    "mx_p2p_source_selections", Kind.COUNTER, "Sources that a pull was started from.", ("policy", "scheme")
)
SELECTIONS_BY_SOURCE: Final = dataclasses.replace(SELECTIONS, labels=("policy", "scheme", "source_worker_id"))
ATTEMPTS: Final = Family(
    "mx_p2p_source_attempts",
    Kind.COUNTER,
    "Attempts by result: success, metadata_miss, incompatible, transfer_retry (another source is left) or "
    "transfer_fallback.",
    ("policy", "scheme", "result"),
)
METADATA_FAILURES: Final = Family(
    "mx_p2p_metadata_lookup_failures", Kind.COUNTER, "Metadata lookups that raised.", ("policy", "scheme")
)
TRANSFER_SECONDS: Final = Family(
    "mx_p2p_transfer_seconds",
    Kind.HISTOGRAM,
    "Time of a pull from the end of its metadata lookup, by outcome: success, retry or fallback.",
    ("policy", "scheme", "outcome"),
    (0.5, 1, 2, 5, 10, 30, 60, 120, 300),
    "s",
)
PHASE_SECONDS: Final = Family(
    "mx_p2p_source_attempt_phase_seconds",
    Kind.HISTOGRAM,
    "Time of one phase of an attempt: metadata, prepare, register, handshake, receive, finalize, release.",
    ("policy", "phase", "outcome", "scheme"),
    (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600),
    "s",
)
SOURCE_LOAD: Final = Family(
    "mx_p2p_source_load", Kind.GAUGE, "Load in [0, 1] of the source chosen last, as it was listed.", ("scheme",)
)
SOURCE_LOADS: Final = dataclasses.replace(
    SOURCE_LOAD,
    help="Load in [0, 1] of each candidate of the last selection, as it was listed.",
    labels=("scheme", "source_worker_id"),
)
CHOSEN_LOAD: Final = Family(
    "mx_selector_chosen_load",
    Kind.HISTOGRAM,
    "Load in [0, 1] of the source that was ranked first, where it is known.",
    ("policy", "scheme"),
    (0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0),
)
CHOSEN_LOAD_AGE: Final = Family(
    "mx_selector_chosen_load_age_seconds",
    Kind.HISTOGRAM,
    "Age of that source's row at selection, by the row's stamp and this host's clock.",
    ("policy", "scheme"),
    (1, 2, 5, 10, 15, 20, 30, 45, 60, 90, 120),
    "s",
)
CHOSEN_UNKNOWN: Final = Family(
    "mx_selector_chosen_unknown",
    Kind.COUNTER,
    "Selections whose first source had no known load.",
    ("policy", "scheme"),
)
FALLBACKS: Final = Family(
    "mx_selector_fallbacks",
    Kind.COUNTER,
    "Selections that fell back to the baseline order, by the kind of error.",
    ("policy", "scheme", "reason"),
)
BUILD_INFO: Final = Family(
    "mx_build_info",
    Kind.GAUGE,
    "What this process runs; always 1.",
    ("component", "version", "scheme"),
)

PHASES: Final = ("metadata", "prepare", "register", "handshake", "receive", "finalize", "release")
ALL: Final = (
    LIST_SOURCES,
    CANDIDATES,
    SELECTION_SECONDS,
    SELECTIONS,
    ATTEMPTS,
    METADATA_FAILURES,
    TRANSFER_SECONDS,
    PHASE_SECONDS,
    SOURCE_LOAD,
    CHOSEN_LOAD,
    CHOSEN_LOAD_AGE,
    CHOSEN_UNKNOWN,
    FALLBACKS,
    BUILD_INFO,
)
