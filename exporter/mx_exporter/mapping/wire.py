"""Just enough of the protobuf encoding to read a message whose few fields we want. Pure.

The kubelet's messages have four levels and we want six fields of them; generated stubs would cost the exporter memory
and a proto file to keep in step. Unknown fields are passed over, as protobuf wants.
"""

from __future__ import annotations

from collections.abc import Iterator

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """The length-delimited fields of a message (texts and messages), in order, as (number, content).

    Raises:
        ValueError: It is no message: cut off, or with a wire type that does not exist.
    """
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            _, at = _varint(message, at)
            continue
        length, at = _length(message, at, kind)
        if at + length > len(message):
            raise ValueError("cut off")
        if kind == _BYTES:
            yield number, message[at : at + length]
        at += length


def texts(message: bytes, number: int) -> tuple[str, ...]:
    """The texts of one field of a message; bytes that are no UTF-8 become replacement characters.

    Raises:
        ValueError: As `fields`.
    """
    return tuple(content.decode("utf-8", "replace") for found, content in fields(message) if found == number)


def messages(message: bytes, number: int) -> tuple[bytes, ...]:
    """The messages of one field of a message.

    Raises:
        ValueError: As `fields`.
    """
    return tuple(content for found, content in fields(message) if found == number)


def _length(message: bytes, at: int, kind: int) -> tuple[int, int]:
    if kind == _BYTES:
        return _varint(message, at)
    if kind in (_FIXED64, _FIXED32):
        return (8 if kind == _FIXED64 else 4), at
    raise ValueError(f"wire type {kind}")


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 64, 7):
        if at >= len(message):
            break
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError("cut off")
