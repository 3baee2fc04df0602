"""The generated stubs: the numbers of deployed peers, and one process with the released client's."""

from __future__ import annotations

import subprocess
import sys

import pytest

import mx_wire
from tests.parts import released

IMPORTS = {
    "ours": "import mx_wire",
    "theirs": "from tests.parts import released; theirs = released.module('p2p_pb2')",
}
TALK = """
ours = mx_wire.SourceInstanceRef(worker_id="w", updated_at=7, source_load=0.5)
again = theirs.SourceInstanceRef.FromString(ours.SerializeToString())
assert (again.worker_id, again.updated_at, again.source_load) == ("w", 7, 0.5)
assert mx_wire.SourceInstanceRef.FromString(again.SerializeToString()) == ours
assert type(ours) is not type(again)
print("talked")
"""


@pytest.mark.released
@pytest.mark.parametrize("order", [("ours", "theirs"), ("theirs", "ours")])
def test_both_stubs_live_in_one_process(order: tuple[str, str]) -> None:
    program = "\n".join([*(IMPORTS[which] for which in order), TALK])
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert (done.stdout, done.returncode) == ("talked\n", 0), done.stderr


@pytest.mark.released
def test_every_field_of_ours_is_the_released_clients() -> None:
    theirs = released.module("p2p_pb2").DESCRIPTOR
    compared = 0
    for name, message in mx_wire.FILE_DESCRIPTOR.message_types_by_name.items():
        peer = theirs.message_types_by_name[name]
        for field in message.fields:
            other = peer.fields_by_number[field.number]
            ours = (field.name, field.type, field.has_presence, field.containing_oneof and field.containing_oneof.name)
            assert ours == (
                other.name,
                other.type,
                other.has_presence,
                other.containing_oneof and other.containing_oneof.name,
            )
            compared += 1
        assert {field.number for field in message.fields} == {field.number for field in peer.fields}
    for name, enum in mx_wire.FILE_DESCRIPTOR.enum_types_by_name.items():
        peer = theirs.enum_types_by_name[name]
        assert [(v.name, v.number) for v in enum.values] == [(v.name, v.number) for v in peer.values]
    assert compared > 70


def test_the_method_paths_are_the_deployed_ones() -> None:
    service = mx_wire.FILE_DESCRIPTOR.services_by_name["P2pService"]
    assert service.full_name == mx_wire.SERVICE == "model_express.p2p.P2pService"
    assert [m.name for m in service.methods] == ["PublishMetadata", "ListSources", "GetMetadata", "UpdateStatus"]


def test_the_public_names_are_pinned() -> None:
    assert [name for name in mx_wire.__all__ if not hasattr(mx_wire, name)] == []
    public = {name for name in vars(mx_wire) if not name.startswith("_")}
    modules = {"channels", "errors", "identities", "loads", "messages", "services"}
    assert public - modules == set(mx_wire.__all__)
