"""Laws of reading a page, whatever stands on it."""

from __future__ import annotations

import math
import timeit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mx_exporter.engines import gauges, lines, readings

TABLE = gauges.builtin()
usage_names = sorted({metric for engine in TABLE.engines for rule in engine.usage for metric in rule.pick.metrics})
label_sets = st.dictionaries(
    st.sampled_from(["engine", "dp_rank", "pid", "model_name", "engine_type", "kv_cache_block_type", "worker_addr"]),
    st.sampled_from(["0", "1", "used", "max", "fraction", "m", ""]),
    max_size=3,
)
values = st.one_of(st.floats(-0.5, 1.5), st.floats(), st.sampled_from([0.0, 1.0, -1.0, 62.0, math.nan, math.inf]))
series = st.tuples(st.sampled_from(sorted(TABLE.by_metric)), label_sets, values)


def line(found: tuple[str, dict[str, str], float]) -> bytes:
    name, labels, value = found
    inner = ",".join(f'{key}="{text}"' for key, text in sorted(labels.items()))
    return f"{name}{{{inner}}} {value!r}".encode()


def read(*found: bytes) -> tuple[readings.Reading, ...]:
    return readings.read(TABLE, found).readings


@given(st.lists(series, max_size=20))
def test_a_value_is_in_bounds_and_there_is_one_or_a_reason(found: list[tuple[str, dict[str, str], float]]) -> None:
    result = read(*map(line, found))
    for one in result:
        assert (one.value is None) != (one.reason is None)
        assert one.value is None or 0 <= one.value <= 1
    keys = [(one.engine, one.index) for one in result]
    assert keys == sorted(set(keys))


@given(st.lists(series, max_size=12), st.randoms())
def test_the_order_of_lines_means_nothing(found: list[tuple[str, dict[str, str], float]], random: object) -> None:
    # Two equal series with different values are the page's mistake; which divisor counts is then open.
    unique = {(name, tuple(sorted(labels.items()))): (name, labels, value) for name, labels, value in found}
    page = [line(one) for one in unique.values()]
    shuffled = list(page)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert repr(read(*page)) == repr(read(*shuffled))


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6))
def test_the_fullest_of_a_ranks_series_counts(found: list[float]) -> None:
    page = [f'sglang:token_usage{{dp_rank="0",tp_rank="{i}"}} {value!r}'.encode() for i, value in enumerate(found)]
    (one,) = read(*page)
    assert one.value == max(found)


@given(st.floats(0, 1), st.sampled_from([-1.0, math.nan, math.inf, 62.0, 1.06, -0.01]))
def test_what_is_no_ratio_neither_counts_nor_hides_what_is(good: float, bad: float) -> None:
    page = [f'sglang:token_usage{{tp_rank="{i}"}} {value!r}'.encode() for i, value in enumerate((bad, good))]
    (one,) = read(*page)
    assert (one.value, one.reason) == (good, None)


def test_of_two_reasons_the_same_one_is_given_in_any_order() -> None:
    page = [b'sglang:token_usage{tp_rank="0"} NaN', b'sglang:token_usage{tp_rank="1"} 62']
    assert [one.reason for one in read(*page)] == [one.reason for one in read(*reversed(page))] == ["not_finite"]


def test_lines_that_are_no_samples_are_counted() -> None:
    page = readings.read(TABLE, [b"vllm:kv_cache_usage_perc x", b"sglang:token_usage 0.5", b"sglang:token_usage{"])
    assert page.bad_lines == 2
    assert [(one.engine, one.value, one.reason) for one in page.readings] == [
        ("sglang", 0.5, None),
        ("vllm", None, "unreadable"),
    ]


def test_the_number_of_ranks_and_their_names_are_bounded() -> None:
    many = [f'vllm:kv_cache_usage_perc{{engine="{i}"}} 0.5'.encode() for i in range(65)]
    assert [(one.index, one.reason) for one in read(*many)] == [("", "too_many_series")]
    assert len(read(*many[:64])) == 64
    long = f'vllm:kv_cache_usage_perc{{engine="{"9" * 17}"}} 0.5'.encode()
    assert [(one.index, one.reason) for one in read(long)] == [("", "too_many_series")]


def test_activity_is_the_ranks_own_where_it_has_any() -> None:
    """sglang#40215: an idle rank keeps its gauges while the engine's shared counters go on."""

    def page(tokens: int, used: int) -> list[bytes]:
        return [
            b'sglang:token_usage{dp_rank="1"} 0.4',
            f'sglang:num_used_tokens{{dp_rank="1"}} {used}'.encode(),
            f"sglang:generation_tokens_total {tokens}".encode(),
        ]

    (before,), (after,), (moved,) = read(*page(1, 10)), read(*page(2, 10)), read(*page(2, 11))
    assert before.activity == after.activity != moved.activity


def test_a_number_that_is_none_stands_still_too() -> None:
    page = [b"sglang:token_usage 0.4", b"sglang:gen_throughput NaN"]
    (before,), (after,) = read(*page), read(*page)
    assert before.activity == after.activity != b""


def test_activity_is_the_engines_where_the_rank_has_none() -> None:
    def page(tokens: int) -> list[bytes]:
        return [b'sglang:token_usage{dp_rank="1"} 0.4', f"sglang:generation_tokens_total {tokens}".encode()]

    (before,), (after,) = read(*page(1)), read(*page(2))
    assert before.activity != after.activity


@pytest.mark.parametrize(
    "page",
    [
        [b'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="used",model="%d"} 1' % i for i in range(1024)]
        + [b'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="max",model="%d"} 9' % i for i in range(1024)],
        [b'vllm:kv_cache_usage_perc{engine="%d"} 0.5' % i for i in range(64)]
        + [b'vllm:generation_tokens_total{model="%d"} 1' % i for i in range(1984)],
        [b'vllm:kv_cache_usage_perc{engine="%d"} 0.5' % (i % 64) for i in range(2048)],
        [b"vllm:kv_cache_usage_perc " + b"9" * 512 + b"x"] * 2000,
    ],
    ids=["pairs", "ranks and shared", "ranks", "digits"],
)
def test_no_page_takes_long(page: list[bytes]) -> None:
    """Whoever serves the page may have made it for that, and the other pages wait."""
    best = min(timeit.repeat(lambda: readings.read(TABLE, page), number=1, repeat=3))
    assert best < 0.5, f"{best:.2f} s"


def test_every_wanted_name_passes_the_filter() -> None:
    for name in TABLE.by_metric:
        for spelt in (name, f"ray_{name}", name.replace("_", ":", 1)):
            kept = lines.LineFilter(TABLE, 1000)
            kept.feed(f"{spelt} 1\n".encode())
            assert kept.lines == [f"{spelt} 1".encode()]
            assert TABLE.canonical(spelt) == name
