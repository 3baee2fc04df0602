"""The table of engines: what ships, what a user adds, and how a mistake in it is said."""

from __future__ import annotations

import pathlib
import re

import pytest

from mx_exporter.engines import gauges, results
from mx_exporter.errors import ConfigurationError

DOCS = pathlib.Path(__file__).parents[3] / "docs" / "engines.md"


def test_what_ships() -> None:
    assert [engine.name for engine in gauges.builtin().engines] == [
        "vllm",
        "sglang",
        "trtllm",
        "dynamo",
        "triton_trtllm",
        "lmdeploy",
    ]


@pytest.mark.parametrize("engine", gauges.builtin().engines, ids=lambda engine: engine.name)
def test_every_engine_can_be_seen_to_freeze(engine: gauges.Engine) -> None:
    assert engine.activity
    assert engine.running
    assert engine.running.metrics[0] in engine.metrics()


@pytest.mark.parametrize(
    ("spelt", "metric"),
    [
        ("vllm:kv_cache_usage_perc", "vllm_kv_cache_usage_perc"),
        ("vllm_kv_cache_usage_perc", "vllm_kv_cache_usage_perc"),
        ("ray_vllm_kv_cache_usage_perc", "vllm_kv_cache_usage_perc"),
        ("ray_vllm:kv_cache_usage_perc", "vllm_kv_cache_usage_perc"),
        ("vllm:kv_cache_usage_perc_total", None),
        ("sglang:cache_usage", None),
        ("ray_ray_vllm_kv_cache_usage_perc", None),
    ],
)
def test_spellings(spelt: str, metric: str | None) -> None:
    assert gauges.builtin().canonical(spelt) == metric


def test_an_engine_of_the_users_own_is_added_and_one_of_the_same_name_replaced(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "own.yaml"
    file.write_text(
        """
        engines:
          - engine: mine
            index: rank
            usage:
              - metric: [a:used, b_used]
                of: {metric: a:size, where: {kind: hbm}}
                with: pool
              - {metric: c, unit: percent, zero_needs: d}
            activity: [e]
            running: {metric: f, where: {state: run}}
            holds_at_rest: true
          - {engine: lmdeploy, usage: [{metric: lmdeploy:other}]}
        """
    )
    table = gauges.load(file)
    assert [engine.name for engine in table.engines][-2:] == ["mine", "lmdeploy"]
    assert [engine.name for engine in table.engines].count("lmdeploy") == 1
    mine = table.engines[-2]
    assert mine == gauges.Engine(
        name="mine",
        index=("rank",),
        usage=(
            gauges.Rule(
                gauges.Pick(("a_used", "b_used"), with_labels=("pool",)),
                of=gauges.Pick(("a_size",), (("kind", "hbm"),)),
            ),
            gauges.Rule(gauges.Pick(("c",)), scale=100.0, zero_needs=gauges.Pick(("d",))),
        ),
        activity=("e",),
        running=gauges.Pick(("f",), (("state", "run"),)),
        holds_at_rest=True,
    )
    assert mine.metrics() == {"a_used", "b_used", "a_size", "c", "d", "e", "f"}
    assert gauges.load(None) is gauges.builtin()


GOOD = "engines: [{engine: a, usage: [{metric: b}]}]"
MISTAKES = {
    "[": "line 1: not YAML (while parsing a flow node",
    "- a": "the document: must be a mapping",
    "engine: []": "engine: is not known here",
    "engines: {}": "engines: must be a list",
    "engines: [a]": "engines[0]: must be a mapping",
    "engines: [{usage: [{metric: b}]}]": "engines[0].engine: give the engine a short name",
    "engines: [{engine: A, usage: [{metric: b}]}]": "engines[0].engine: give the engine a short name",
    "engines: [{engine: a}]": "engines[0].usage: name at least one gauge",
    "engines: [{engine: a, usage: [{}]}]": "engines[0].usage[0].metric: name the gauge",
    "engines: [{engine: a, usage: [{metric: 'b c'}]}]": "engines[0].usage[0].metric: 'b c' is no name of a metric",
    "engines: [{engine: a, usage: [{metric: b, unit: bytes}]}]": "engines[0].usage[0].unit: must be ratio or percent",
    "engines: [{engine: a, usage: [{metric: b, where: {c: 1}}]}]": "engines[0].usage[0].where: must map names to text",
    "engines: [{engine: a, usage: [{metric: b, scale: 2}]}]": "engines[0].usage[0].scale: is not known here",
    "engines: [{engine: a, usage: [{metric: b, of: {}}]}]": "engines[0].usage[0].of.metric: name the gauge",
    "engines: [{engine: a, usage: [{metric: b}], index: 3}]": "engines[0].index: must be text or a list of texts",
    "engines: [{engine: a, usage: [{metric: b}], holds_at_rest: 1}]": "engines[0].holds_at_rest: must be true or false",
    "engines: [{engine: a, usage: [{metric: b}]}, {engine: a, usage: [{metric: b}]}]": "engine 'a' appears twice",
}


@pytest.mark.parametrize("text", MISTAKES)
def test_a_mistake_is_one_line_that_says_where(text: str) -> None:
    assert gauges.parse(GOOD, "own.yaml")
    with pytest.raises(ConfigurationError) as error:
        gauges.parse(text, "own.yaml")
    assert str(error.value).startswith(f"own.yaml: {MISTAKES[text]}")
    assert "\n" not in str(error.value)


def test_the_page_of_engines_names_every_gauge_that_is_read() -> None:
    """docs/engines.md is written by hand; what it leaves out is a lie."""
    documented = set(re.findall(r"`([a-z_]+[:_][a-z_]+)", DOCS.read_text()))
    for engine in gauges.builtin().engines:
        for rule in engine.usage:
            assert set(rule.pick.metrics) <= {gauges.canonical(name) for name in documented}, engine.name


def test_the_page_of_engines_explains_every_reason() -> None:
    source = "".join(file.read_text() for file in pathlib.Path(gauges.__file__).parent.glob("*.py"))
    raised = set(
        re.findall(r'(?:reason=|PageError\(|return None, |None, |"": |= |else |reason == )"([a-z_]{4,})"', source)
    )
    words = raised | set(results._TELLING) | results.PASSING
    explained = set(re.findall(r"`([a-z_]+)`", DOCS.read_text()))
    assert {"asleep", "frozen", "no_blocks", "internal", "unreachable", "no_endpoint", "shared_address"} <= words
    assert words - explained == set()
