"""The selector's nouns: the target that wants weights, and what a candidate must look like.

Everything else in this package speaks in these. No I/O here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Protocol, TypeVar

#: A listed source in any shape: our SourceInstanceRef, the released client's, or a plain object with its attributes.
CandidateT = TypeVar("CandidateT")

#: Sources that a target tries before it falls back to disk (the released client's MAX_SOURCE_RETRIES).
MAX_ATTEMPTS = 3


class Candidate(Protocol):
    """What a policy reads of a listed source; everything but the first three may be missing.

    Optional beside these: `source_load` (float in [0, 1]), `updated_at` (int, unix milliseconds, 0 = unknown),
    `accelerator` (str) and `topology` (mapping of level to domain).
    """

    mx_source_id: str
    worker_id: str
    worker_rank: int


@dataclasses.dataclass(frozen=True, slots=True)
class Funnel:
    """How many sources were left after each filter of one selection: listed READY, of the rank, of the accelerator."""

    listed: int = 0
    rank_matched: int = 0
    accelerator_matched: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Target:
    """The worker that wants weights, as far as its choice of a source depends on it.

    Attributes:
        model_name: As in the target's own SourceIdentity.
        worker_id: Any text that is this worker's own; replicas with different ids prefer different sources.
        worker_rank: The model shard; only sources of the same rank hold the same weights.
        accelerator: Family such as `cuda` or `xpu`; empty means unknown.
        topology: Level to domain of the target's own node; None reads it from the environment when a policy asks.
    """

    model_name: str
    worker_id: str
    worker_rank: int = 0
    accelerator: str = ""
    topology: Mapping[str, str] | None = None

    @classmethod
    def of(cls, context: Any) -> Target:
        """The target that a load context of the released client describes.

        Args:
            context: Anything with `identity.model_name`, `worker_id` and `worker_rank`.

        Raises:
            AttributeError: One of them is missing.
        """
        accelerator = getattr(getattr(context, "accelerator_backend", None), "name", "")
        return cls(
            context.identity.model_name,
            context.worker_id,
            context.worker_rank,
            accelerator if isinstance(accelerator, str) else "",
        )
