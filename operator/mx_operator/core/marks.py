"""The mark: how a stored load says by itself that an operator wrote it, and which write that was.

The low 16 bits of the float32 become `0xA5` and a nonce. A source's own value practically never looks like that (0,
0.25, 0.5, 1 and every k/100 never do; any other float32 does with probability 2^-8, which costs that source some
windows and nothing else), so a value without the mark is a source's own, and two writes of the same load differ.
"""

from __future__ import annotations

import struct
from typing import Final

NONCES: Final = 256
#: No marked value is above 1 or below this one, which stands for 0.
FLOOR: Final = 2.0**-10
#: No load is further from its marked value.
PRECISION: Final = 0.002
_TAG: Final = 0xA500
_TAG_MASK: Final = 0xFF00
_FLOAT: Final = struct.Struct("<f")
_BITS: Final = struct.Struct("<I")


def mark(load: float, nonce: int) -> float:
    """The marked value nearest to a load.

    Args:
        load: In [0, 1].
        nonce: In [0, 256).

    Returns:
        A float32 in (2^-10, 1), at most 0.002 away; 1 becomes about 0.9986 and 0 about 0.00098.

    Raises:
        ValueError: `load` or `nonce` is out of range, or `load` is NaN.
    """
    if not 0.0 <= load <= 1.0 or not 0 <= nonce < NONCES:
        raise ValueError(f"cannot mark load {load!r} with nonce {nonce!r}")
    (bits,) = _BITS.unpack(_FLOAT.pack(max(load, FLOOR)))
    near = [(bits >> 16) + step for step in (-1, 0, 1)]
    inside = [high for high in near if _with_tag(high, 0) > FLOOR and _with_tag(high, NONCES - 1) < 1.0]
    # By the middle nonce, not by this one: two writes of one load must be equal but for their nonces.
    nearest = min(inside, key=lambda high: abs(_with_tag(high, NONCES // 2) - load))
    return _with_tag(nearest, nonce)


def _with_tag(high: int, nonce: int) -> float:
    value: float = _FLOAT.unpack(_BITS.pack(high << 16 | _TAG | nonce))[0]
    return value


def nonce_of(load: float | None) -> int | None:
    """The nonce of a marked value; None for any other value and for none."""
    if load is None or not FLOOR < load < 1.0:
        return None
    (bits,) = _BITS.unpack(_FLOAT.pack(load))
    return bits & 0xFF if bits & _TAG_MASK == _TAG else None


def is_marked(load: float | None) -> bool:
    """Whether an operator, this process or another, wrote this value."""
    return nonce_of(load) is not None
