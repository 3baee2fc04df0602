"""Both dialects of the load, against messages built by hand and against the released client's own classes."""

from __future__ import annotations

import math
import struct
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given
from hypothesis import strategies as st

import mx_wire
from tests.parts import released

unit_floats = st.floats(0, 1, width=32)


def draft_row() -> Any:
    """SourceInstanceRef as the field's first draft numbered it: `float source_load = 6`, without presence."""
    file = descriptor_pb2.FileDescriptorProto(name="draft.proto", package="model_express.p2p", syntax="proto3")
    message = file.message_type.add(name="SourceInstanceRef")
    string, uint32, float32 = 9, 13, 2  # FieldDescriptorProto.Type
    fields = {
        1: ("mx_source_id", string),
        2: ("worker_id", string),
        4: ("worker_rank", uint32),
        6: ("source_load", float32),
    }
    for number, (name, kind) in fields.items():
        message.field.add(name=name, number=number, type=kind, label=1)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("model_express.p2p.SourceInstanceRef"))


Draft = draft_row()


@given(load=unit_floats, dialect=st.sampled_from(list(mx_wire.Dialect)))
def test_what_is_set_is_read_bit_for_bit(load: float, dialect: mx_wire.Dialect) -> None:
    row = mx_wire.SourceInstanceRef(worker_id="w", updated_at=1_700_000_000_000)
    mx_wire.set_load(row, load, dialect)
    sent = mx_wire.SourceInstanceRef.FromString(row.SerializeToString())
    read = mx_wire.read_load(sent)
    assert read is not None
    assert struct.pack("<f", read) == struct.pack("<f", load)
    assert sent.updated_at == 1_700_000_000_000


@given(load=unit_floats)
def test_a_draft_peer_reads_the_load_and_a_released_one_too(load: float) -> None:
    row = mx_wire.SourceInstanceRef(worker_id="w", updated_at=1_700_000_000_000)
    mx_wire.set_load(row, load)
    data = row.SerializeToString()
    assert Draft.FromString(data).source_load == load
    assert mx_wire.SourceInstanceRef.FromString(data).source_load == load


@given(load=st.floats(width=32))
def test_a_draft_peers_row_is_read(load: float) -> None:
    row = mx_wire.SourceInstanceRef.FromString(Draft(worker_id="w", source_load=load).SerializeToString())
    read = mx_wire.read_load(row)
    if load == 0.0 and math.copysign(1, load) > 0:
        assert read is None  # proto3 without presence does not send a zero: nothing was said
    else:
        assert read is not None
        assert struct.pack("<f", read) == struct.pack("<f", load)
    assert row.updated_at == 0


def test_no_load_is_none_and_a_measured_zero_is_not() -> None:
    row = mx_wire.SourceInstanceRef(worker_id="w")
    assert mx_wire.read_load(row) is None
    mx_wire.set_load(row, 0.0)
    assert mx_wire.read_load(row) == 0.0


def test_the_released_field_wins_over_the_drafts() -> None:
    row = mx_wire.SourceInstanceRef()
    mx_wire.set_load(row, 0.25, mx_wire.Dialect.DRAFT)
    row.source_load = 0.75
    assert mx_wire.read_load(row) == 0.75


def test_a_released_only_row_carries_no_unknown_field() -> None:
    row = mx_wire.SourceInstanceRef(updated_at=5)
    mx_wire.set_load(row, 0.5, mx_wire.Dialect.RELEASED)
    assert row.SerializeToString() == b"\x30\x05\x55\x00\x00\x00\x3f"


def test_clearing_removes_either() -> None:
    row = mx_wire.SourceInstanceRef(worker_id="w")
    mx_wire.set_load(row, 0.5)
    mx_wire.clear_load(row)
    assert mx_wire.read_load(row) is None
    assert row == mx_wire.SourceInstanceRef(worker_id="w")


@pytest.mark.parametrize("load", [math.nan, math.inf, -0.1, 1.1])
def test_a_load_outside_the_range_is_never_sent(load: float) -> None:
    with pytest.raises(ValueError, match="source_load must be a number from 0 to 1"):
        mx_wire.set_load(mx_wire.SourceInstanceRef(), load)


@pytest.mark.released
def test_the_released_clients_class_reads_a_row_of_both_dialects() -> None:
    row = mx_wire.SourceInstanceRef(worker_id="w", updated_at=1_700_000_000_000)
    mx_wire.set_load(row, 0.625)
    theirs = released.module("p2p_pb2").SourceInstanceRef.FromString(row.SerializeToString())
    assert (theirs.worker_id, theirs.updated_at, theirs.source_load) == ("w", 1_700_000_000_000, 0.625)
