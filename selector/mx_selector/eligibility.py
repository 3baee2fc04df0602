"""Which listed sources a target may pull from at all, decided before any policy sees them.

`selection` filters its list with `eligible`; engines repeat `compatible(..., known=True)` on the metadata they fetched.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from mx_selector.model import CandidateT, Target
from mx_wire import MxSourceType

# Families whose plain weights are the same bytes on both sides (released client, `metadata/payload.py`).
_INTERCHANGEABLE: Final = frozenset({frozenset({"cuda", "xpu"})})
_PLAIN_DTYPES: Final = frozenset({"float32", "float", "f32", "float16", "half", "f16", "bfloat16", "bf16"})


def of_rank(candidates: Iterable[CandidateT], rank: int) -> list[CandidateT]:
    """The candidates that hold the shard of `rank`."""
    return [c for c in candidates if getattr(c, "worker_rank", None) == rank]


def eligible(candidates: Iterable[CandidateT], identity: Any, target: Target) -> list[CandidateT]:
    """The candidates whose accelerator can serve the target's, as far as a listing tells."""
    if not target.accelerator:
        return list(candidates)
    verdicts: dict[str, bool] = {}

    def fits(candidate: Any) -> bool:
        family = getattr(candidate, "accelerator", "") or ""
        if family not in verdicts:
            verdicts[family] = compatible(target.accelerator, family, identity)
        return verdicts[family]

    return [c for c in candidates if fits(c)]


def compatible(target: str, source: str, identity: Any, *, known: bool = False) -> bool:
    """Whether weights of `identity` can go from a `source` accelerator to a `target` one.

    The same family always can. Across families only plain (unquantized) weights can, and only between families whose
    bytes are interchangeable. An empty family is unknown and passes, so that older workers stay usable.

    Args:
        target: Family of the puller, such as `cuda`.
        source: Family of the source.
        identity: A SourceIdentity; `mx_source_type`, `quantization` and `dtype` are read. None permits one family only.
        known: Set after the source's metadata was fetched: an unknown family is then refused for quantized weights,
            whose layout belongs to the hardware.
    """
    plain = _is_plain(identity)
    if not target or not source:
        return plain or not known or not _is_weights(identity)
    if target == source:
        return True
    return plain and _is_weights(identity) and frozenset({target, source}) in _INTERCHANGEABLE


def _is_weights(identity: Any) -> bool:
    return identity is not None and getattr(identity, "mx_source_type", None) == MxSourceType.MX_SOURCE_TYPE_WEIGHTS


def _is_plain(identity: Any) -> bool:
    quantization = str(getattr(identity, "quantization", "unknown")).strip().lower()
    dtype = str(getattr(identity, "dtype", "unknown")).strip().lower().removeprefix("torch.")
    return quantization in ("", "none") and dtype in _PLAIN_DTYPES


def funnel(instances: Sequence[CandidateT], identity: Any, target: Target) -> tuple[list[CandidateT], list[CandidateT]]:
    """The two filters in a row: of the target's rank, and of those the eligible."""
    matched = of_rank(instances, target.worker_rank)
    return matched, eligible(matched, identity, target)
