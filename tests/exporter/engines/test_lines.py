"""The filter keeps exactly the wanted lines, however a page is cut into pieces, and holds nothing of the others."""

from __future__ import annotations

import itertools
import time

from hypothesis import given
from hypothesis import strategies as st

from mx_exporter.engines import gauges, lines
from mx_exporter.engines.lines import MAX_LINES, LineFilter

TABLE = gauges.builtin()
WANTED = sorted({*TABLE.by_metric, "vllm:kv_cache_usage_perc", "ray_vllm_kv_cache_usage_perc", "sglang:token_usage"})
OTHERS = ["vllm:kv_cache_usage_percent", "xvllm:kv_cache_usage_perc", "vllm:kv_cache_usage_per", "python_info", "#", ""]

name = st.sampled_from(WANTED + OTHERS)
rest = st.one_of(
    st.sampled_from([" 1", '{a="b"} 2', "\t3", "", "x"]), st.text('ab{} \t"=\\', max_size=12).map(" ".__add__)
)
page = st.lists(st.builds(str.__add__, name, rest), max_size=20).map(
    lambda found: "".join(f"{line}\n" for line in found).encode()
)


def kept(body: bytes, cuts: list[int], max_line: int = 1 << 16) -> LineFilter:
    found = LineFilter(TABLE, max_line)
    edges = [0, *sorted(cut % (len(body) + 1) for cut in cuts), len(body)]
    for start, end in itertools.pairwise(edges):
        found.feed(body[start:end])
    return found


def wanted(line: bytes) -> bool:
    """What the filter is for, said plainly."""
    text = line.replace(b"{", b" ", 1).replace(b"\t", b" ").split(b" ")
    return len(text) > 1 and TABLE.canonical(text[0].decode()) is not None


@given(page, st.lists(st.integers(0, 10_000), max_size=6))
def test_keeps_the_wanted_lines_however_the_page_is_cut(body: bytes, cuts: list[int]) -> None:
    found = kept(body, cuts)
    assert found.lines == [line for line in body.split(b"\n")[:-1] if wanted(line)]
    assert found.whole
    assert found.size == len(body)


@given(page, st.integers(0, 10_000))
def test_a_page_that_ends_inside_a_line_is_not_whole_and_that_line_is_not_kept(body: bytes, cut: int) -> None:
    part = body[: cut % (len(body) + 1)]
    found = kept(part, [])
    assert found.whole == (not part or part.endswith(b"\n"))
    assert found.lines == [line for line in part.split(b"\n")[:-1] if wanted(line)]


@given(st.integers(1, 300), st.lists(st.integers(0, 10_000), max_size=6))
def test_long_lines_are_passed_over_and_counted_where_they_were_wanted(length: int, cuts: list[int]) -> None:
    wanted_line = b'vllm:kv_cache_usage_perc{a="' + b"x" * length + b'"} 1\n'
    other_line = b'python_info{a="' + b"x" * length + b'"} 1\n'
    last = b"sglang:token_usage 0.5\n"
    found = kept(other_line + wanted_line + last, cuts, max_line=100)
    too_long = len(wanted_line) > 100
    assert found.lines == ([] if too_long else [wanted_line[:-1]]) + [last[:-1]]
    assert found.overlong == too_long


def test_nothing_but_one_line_is_held_of_an_endless_one() -> None:
    found = LineFilter(TABLE, 1000)
    found.feed(b"vllm:kv_cache_usage_perc")
    for _ in range(100):
        found.feed(b"x" * 10_000)
        assert len(found._rest) <= 11_000
    assert found.lines == []
    assert not found.whole


def test_more_wanted_lines_than_any_engine_has_are_refused() -> None:
    found = LineFilter(TABLE, 1000)
    found.feed(b"sglang:token_usage 0.5\n" * (MAX_LINES + 1))
    assert found.overfull
    assert len(found.lines) == MAX_LINES


def test_no_more_than_a_megabyte_is_kept() -> None:
    found = LineFilter(TABLE, 1 << 16)
    for _ in range(100):
        found.feed(b'sglang:token_usage{x="' + b"y" * 60_000 + b'"} 0.5\n')
    assert found.overfull
    assert sum(map(len, found.lines)) <= lines.MAX_KEPT


def test_openmetrics_end_is_seen_with_and_without_its_line_end() -> None:
    for end in (b"# EOF\n", b"# EOF"):
        found = LineFilter(TABLE, 1000)
        for byte in b"a 1\n" + end:
            found.feed(bytes([byte]))
        assert found.ended
    assert not kept(b"# EOF\na 1\n", []).ended


def test_five_megabytes_take_less_than_an_eye_blink() -> None:
    """Another thread must get its turn between pieces, so one piece is short and a whole page cheap."""
    line = b'vllm:e2e_request_latency_seconds_bucket{engine="0",le="0.5",model_name="meta-llama/Llama"} 123.0\n'
    piece = line * (65536 // len(line))
    best = 1.0
    for _ in range(5):
        found = LineFilter(TABLE, 1 << 16)
        began = time.perf_counter()
        for _ in range(80):
            found.feed(piece)
        best = min(best, time.perf_counter() - began)
    assert found.lines == []
    assert best < 0.1, f"{best * 1000:.0f} ms for 5 MB"


def test_the_pattern_is_one_for_each_table() -> None:
    assert lines._pattern(TABLE) is lines._pattern(TABLE)
