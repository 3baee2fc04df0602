"""`mx_source_id` against the released client's own computation."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mx_wire
from tests.conftest import LONG
from tests.parts import released

# Letters whose case mappings are odd (dotted capital I, sharp s, Kelvin sign): casefold() would not pass for lower().
texts = st.text("abcAB|-_/.:0\u00e9 \u00c4\u00df\u0130\u0131\u212a", max_size=8)
numbers = st.integers(0, 2**32 - 1)
identities = st.builds(
    mx_wire.SourceIdentity,
    mx_version=texts,
    mx_source_type=st.sampled_from(range(10)),
    model_name=texts,
    backend_framework=st.sampled_from(range(4)),
    tensor_parallel_size=numbers,
    pipeline_parallel_size=numbers,
    expert_parallel_size=numbers,
    dtype=texts,
    quantization=texts,
    extra_parameters=st.dictionaries(texts, texts, max_size=4),
    revision=texts,
    backend_framework_version=texts,
    torch_version=texts,
    cuda_version=texts,
    triton_version=texts,
    gpu_arch=texts,
    compile_config_digest=texts,
)


@pytest.mark.released
@settings(max_examples=5_000 if LONG else 500)
@given(identity=identities)
def test_it_is_the_released_clients_for_every_identity(identity: mx_wire.SourceIdentity) -> None:
    theirs = released.module("p2p_pb2").SourceIdentity.FromString(identity.SerializeToString())
    expected = released.module("metadata.source_id").compute_mx_source_id(theirs)
    assert mx_wire.mx_source_id(identity) == expected


def test_case_and_order_do_not_matter() -> None:
    one = mx_wire.SourceIdentity(model_name="Llama", extra_parameters={"B": "X", "a": "y"})
    two = mx_wire.SourceIdentity(model_name="lLAMA", extra_parameters={"A": "Y", "b": "x"})
    assert mx_wire.mx_source_id(one) == mx_wire.mx_source_id(two)


def test_of_keys_that_differ_in_case_the_one_that_sorts_first_wins() -> None:
    both = mx_wire.SourceIdentity(extra_parameters={"key": "lower", "KEY": "upper"})
    assert mx_wire.mx_source_id(both) == mx_wire.mx_source_id(mx_wire.SourceIdentity(extra_parameters={"key": "upper"}))


def test_an_empty_newer_field_keeps_the_old_name() -> None:
    plain = mx_wire.SourceIdentity(model_name="m")
    assert mx_wire.mx_source_id(plain) == mx_wire.mx_source_id(mx_wire.SourceIdentity(model_name="m", gpu_arch=""))
    assert mx_wire.mx_source_id(plain) != mx_wire.mx_source_id(mx_wire.SourceIdentity(model_name="m", gpu_arch="sm_90"))
