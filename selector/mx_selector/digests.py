"""The rendezvous digest: 64 bits that any process computes alike for a (target, candidate) pair.

The key is pinned by deployed peers: six fields joined by `|` (the target's model_name, worker_id and worker_rank, the
candidate's mx_source_id, worker_id and worker_rank), UTF-8, BLAKE2b with an 8-byte digest read big-endian (released
client, `source_selection.py`). Two different pairs can share a key when names contain `|`; `orders` keeps those apart.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Sequence
from typing import Any, Final

from mx_selector.model import Target

#: One over the number of digests; `digest * UNIT` equals `digest / 2**64` bit for bit (a power of two), and is faster.
UNIT: Final = 2.0**-64


def digests(candidates: Iterable[Any], target: Target) -> Sequence[int]:
    """The digest of each candidate for `target`.

    Raises:
        AttributeError: A candidate lacks one of the three identifying attributes.
        UnicodeEncodeError: An identifier holds a lone surrogate.
    """
    # The target's half is hashed once and its state copied; all digests are unpacked in one call.
    copy = hashlib.blake2b(f"{target.model_name}|{target.worker_id}|{target.worker_rank}|".encode(), digest_size=8).copy
    joined: list[bytes] = []
    add = joined.append
    for c in candidates:
        state = copy()
        state.update(f"{c.mx_source_id}|{c.worker_id}|{c.worker_rank}".encode())
        add(state.digest())
    return struct.unpack(f">{len(joined)}Q", b"".join(joined))


def digest(candidate: Any, target: Target) -> int:
    """The digest of one candidate; see `digests`."""
    return digests((candidate,), target)[0]
