"""Reading and writing `source_load` in a listed row, whatever dialect the peer speaks.

Two numberings of SourceInstanceRef are deployed. The released client and server have `int64 updated_at` at field 6
and `optional float source_load` at 10; the field's first published draft has `float source_load`, without presence,
at 6. The wire types differ (varint against fixed32), so a parser of either keeps the other's field as unknown
instead of misreading it, and a row can carry both.
"""

from __future__ import annotations

import enum
import math
import struct
from typing import Final

from google.protobuf.unknown_fields import UnknownFieldSet

from mx_wire.messages import SourceInstanceRef

_DRAFT_FIELD: Final = 6
_FIXED32: Final = 5
_DRAFT_TAG: Final = bytes([_DRAFT_FIELD << 3 | _FIXED32])


class Dialect(enum.Enum):
    """Which numbering of the load a server writes into its rows."""

    BOTH = "both"
    RELEASED = "released"
    DRAFT = "draft"


def read_load(row: SourceInstanceRef) -> float | None:
    """The load of a listed row, as its server sent it.

    Args:
        row: A row of ListSources, from a peer of either dialect.

    Returns:
        The float32 that was sent, neither checked nor clamped (a peer may send anything, NaN included), or None
        where none was sent. A draft peer does not send 0, so a source that it lists as idle reads as None.
    """
    if row.HasField("source_load"):
        return row.source_load
    load = None
    for field in UnknownFieldSet(row):  # type: ignore[attr-defined]  # its type stub lacks __iter__
        if field.field_number == _DRAFT_FIELD and field.wire_type == _FIXED32:
            (load,) = struct.unpack("<f", struct.pack("<I", field.data))  # the last one wins, as in any parser
    return load


def set_load(row: SourceInstanceRef, load: float, dialect: Dialect = Dialect.BOTH) -> None:
    """Put a load into a fresh row so that readers of `dialect` find it.

    Args:
        row: A row without a load.
        load: In [0, 1].
        dialect: BOTH is read by protobuf's Python, Go and C++ parsers of either numbering; a strict decoder (Rust's
            prost) refuses a field 6 of the wrong wire type, so a fleet with such readers names its own.

    Raises:
        ValueError: `load` is not in [0, 1].
    """
    if not (math.isfinite(load) and 0.0 <= load <= 1.0):
        raise ValueError(f"source_load must be a number from 0 to 1, not {load!r}")
    if dialect is not Dialect.DRAFT:
        row.source_load = load
    if dialect is not Dialect.RELEASED:
        row.MergeFromString(_DRAFT_TAG + struct.pack("<f", load))


def clear_load(row: SourceInstanceRef) -> None:
    """Remove the load, in either dialect, from a row."""
    row.ClearField("source_load")
    row.DiscardUnknownFields()
