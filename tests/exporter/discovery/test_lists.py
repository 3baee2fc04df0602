"""The answer to a LIST, item by item, must say what the whole document says."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mx_exporter.discovery.lists import each_item

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)
items = st.lists(st.dictionaries(st.text(), values, max_size=4), max_size=5)


def walked(body: bytes) -> tuple[str, list[Mapping[str, Any]]]:
    found: list[Mapping[str, Any]] = []
    return each_item(body, found.append), found


@settings(max_examples=40)
@given(
    items,
    st.text(),
    st.dictionaries(st.text(), values, max_size=3),
    st.permutations([0, 1, 2]),
    st.sampled_from([None, 2]),
)
def test_the_same_as_the_document(
    found: list[dict[str, Any]], version: str, more: dict[str, Any], order: list[int], indent: int | None
) -> None:
    parts = [("items", found), ("metadata", {"resourceVersion": version}), ("more", more)]
    document = dict(parts[i] for i in order)
    body = json.dumps(document, indent=indent).encode("utf-8", "surrogatepass")
    assert walked(body) == (version, found)


@settings(max_examples=40)
@given(items, st.data())
def test_no_beginning_of_a_list_is_a_list(found: list[dict[str, Any]], data: st.DataObject) -> None:
    body = json.dumps({"metadata": {"resourceVersion": "1"}, "items": found}).encode()
    with pytest.raises(ValueError):
        walked(body[: data.draw(st.integers(0, len(body) - 1))])


@given(st.binary(max_size=200))
def test_nothing_but_a_value_error(body: bytes) -> None:
    with pytest.raises(ValueError):
        walked(body)


@pytest.mark.parametrize(
    "body",
    ["{}", "[]", '{"metadata": {}, "items": []}', '{"metadata": {"resourceVersion": 1}}', '{"items": []}', "null"],
)
def test_a_list_has_a_version(body: str) -> None:
    with pytest.raises(ValueError):
        walked(body.encode())


def test_no_items_at_all() -> None:
    assert walked(b'{"metadata": {"resourceVersion": "7"}, "items": null}') == ("7", [])
    assert walked(b'{"metadata": {"resourceVersion": "7"}}') == ("7", [])
