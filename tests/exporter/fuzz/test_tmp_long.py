"""The fuzzers' targets under hypothesis: bytes of every kind, and bytes that look like the real thing."""

from __future__ import annotations

import pathlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.exporter.fuzz.engine_targets import TABLE, TARGETS

CORPUS = pathlib.Path(__file__).parent / "corpus"

words = st.sampled_from(
    [
        *sorted(TABLE.by_metric),
        *(f"ray_{name}" for name in sorted(TABLE.by_metric)),
        "vllm:kv_cache_usage_perc", "sglang:token_usage", "# EOF", "# TYPE x gauge", "{", "}", '="', '"', ",", " ",
        "\n",
        "engine", "pid", "dp_rank", "kv_cache_block_type", "used", "max", "0", "1", "0.5", "-1", "1e-3", "NaN", "+Inf",
        "1.05", "62", "\\", "\t", "\r", "\0", "é",
    ]
)  # fmt: skip
pages = st.lists(words, max_size=60).map(lambda parts: "".join(parts).encode())

yaml_words = st.sampled_from(
    [
        "sources:", "engines:", " - ", "pod: ", "{", "}", "[", "]", "name: ", "ip: ", "10.0.0.1", "endpoints: ",
        "port: ",
        "8000", "path: ", "/m", "engine: ", "usage: ", "metric: ", "a:b", "unit: ", "percent", "of: ", "where: ", ", ",
        "\n", "\n  ", "&a ", "*a", "!!binary ", "2024-13-45", "1e400", "null", "true", "0x1f", "'", '"', "? ", "<<: ",
    ]
)  # fmt: skip
documents = st.lists(yaml_words, max_size=30).map(lambda parts: "".join(parts).encode())

json_words = st.sampled_from(
    [
        "{", "}", "[", "]", ",", ":", '"metadata"', '"items"', '"resourceVersion"', '"1"', '"spec"', '"nodeName"',
        '"node-a"', '"status"', '"phase"', '"Running"', '"podIP"', '"10.0.0.1"', '"containers"', '"ports"', "8000",
        '"annotations"', '"sourceload.dev/port"', "null", "1e999", '"\\ud800"', " ", "\n",
    ]
)  # fmt: skip
objects = st.lists(json_words, max_size=40).map(lambda parts: "".join(parts).encode())

LIKELY = {
    "page": pages,
    "line": pages,
    "engines_file": documents,
    "static_file": documents,
    "pod": objects,
    "pod_list": objects,
}


@pytest.mark.parametrize("target", TARGETS)
@settings(max_examples=15000, deadline=None)
@given(st.data())
def test_any_bytes(target: str, data: st.DataObject) -> None:
    TARGETS[target](data.draw(st.binary(max_size=300) | LIKELY[target]))


@pytest.mark.parametrize("target", TARGETS)
def test_the_corpus(target: str) -> None:
    """What fuzzing found worth keeping, and what it began with."""
    found = sorted((CORPUS / target).iterdir())
    assert found
    for file in found:
        TARGETS[target](file.read_bytes())
