"""One line: what Prometheus's own parser reads, ours reads alike; what is no sample is refused."""

from __future__ import annotations

import contextlib
import math
import timeit

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from mx_exporter.engines.exposition import LineError, Sample, name_of, parse

label_name = st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_]{0,6}", fullmatch=True).filter(lambda name: not name.startswith("__"))
label_value = st.text(st.characters(codec="utf-8", exclude_characters="\n\r"), max_size=12)
labels = st.dictionaries(label_name, label_value, max_size=4)
value = st.floats() | st.integers(-(10**20), 10**20).map(float)
timestamp = st.just("") | st.integers(-(10**13), 10**13).map(lambda number: f" {number}")


def written(metric: str, found: dict[str, str], number: float, stamp: str) -> str:
    def escaped(text: str) -> str:
        return text.replace("\\", r"\\").replace('"', r"\"")

    inner = ",".join(f'{key}="{escaped(text)}"' for key, text in found.items())
    return f"{metric}{{{inner}}} {number!r}{stamp}" if found else f"{metric} {number!r}{stamp}"


def same(one: float, other: float) -> bool:
    return one == other or (math.isnan(one) and math.isnan(other))


@given(labels, value, timestamp)
def test_reads_what_prometheus_reads(found: dict[str, str], number: float, stamp: str) -> None:
    line = written("vllm:kv_cache_usage_perc", found, number, stamp)
    sample = parse(line.encode())
    assert (sample.name, sample.labels) == ("vllm:kv_cache_usage_perc", found)
    assert same(sample.value, number)
    (family,) = text_string_to_metric_families(line + "\n")
    (theirs,) = family.samples
    assert theirs.labels == sample.labels
    assert same(theirs.value, sample.value)


@given(st.binary(max_size=60))
def test_never_raises_anything_else(line: bytes) -> None:
    line = line.replace(b"\n", b"")
    try:
        sample = parse(line)
    except LineError:
        return
    assert name_of(line) == sample.name
    assert isinstance(sample.value, float)


@given(labels, st.floats(0, 1), st.data())
def test_no_beginning_of_a_line_with_labels_passes_for_another_sample(
    found: dict[str, str], number: float, data: st.DataObject
) -> None:
    """Unless the cut is inside the number itself, which the filter rules out: it keeps only lines that end."""
    line = written("m", {**found, "z": "1"}, number, "").encode()
    cut = data.draw(st.integers(0, line.rindex(b"}") + 1))
    with pytest.raises(LineError):
        parse(line[:cut])


@pytest.mark.parametrize(
    ("line", "labels", "number"),
    [
        ('a{b="c"} 1', {"b": "c"}, 1.0),
        ('a { b = "c" , d="e", } 1e-3', {"b": "c", "d": "e"}, 0.001),
        ("a\t1", {}, 1.0),
        ("a{} .5", {}, 0.5),
        ('a{b="x}y{z"} +Inf', {"b": "x}y{z"}, math.inf),
        (r'a{b="q\"r\\s\nt"} 1. 99', {"b": 'q"r\\s\nt'}, 1.0),
        ('a 1 1720000000.123 # {trace="x"} 0.5 1.2', {}, 1.0),
        ("a 1 # {} 0.5", {}, 1.0),
        ("a 1   ", {}, 1.0),
        ('a{b="é"} 1', {"b": "é"}, 1.0),
    ],
)
def test_forms_of_a_sample(line: str, labels: dict[str, str], number: float) -> None:
    assert parse(line.encode()) == Sample("a", labels, number)


@pytest.mark.parametrize(
    "line",
    [
        "", "a", "a ", "a b", "a 1 b", "a 1 2 3", "a{ 1", 'a{b="c" 1', 'a{b="c"}1', 'a{b=c} 1', 'a{b="c",b="d"} 1',
        'a{b="c"d="e"} 1', 'a{,} 1', "a 1_000", "a 0x1p-2", "a --1", "a 1e", "a 1,5", 'a{b="c} 1', "1a 1", "a 1\r",
        '{"a"} 1', "a nano", "a infinit",
    ],
)  # fmt: skip
def test_what_is_no_sample(line: str) -> None:
    with pytest.raises(LineError):
        parse(line.encode())


def test_bytes_that_are_no_text() -> None:
    with pytest.raises(LineError):
        parse(b'a{b="\xff\xfe"} 1')


LONG = 1 << 16
HARD = {
    "digits": b"a " + b"9" * LONG + b"x",
    "digits and a point": b"a " + b"9" * LONG + b"." + b"9" * LONG + b"x",
    "an exponent": b"a 1e" + b"9" * LONG + b"x",
    "a true number": b"a " + b"9" * LONG,
    "a small true number": b"a 0." + b"0" * LONG + b"1",
    "spaces": b"a" + b" " * LONG + b"x",
    "spaces after the number": b"a 1" + b" " * LONG + b"x",
    "spaces after the timestamp": b"a 1 1" + b" " * LONG + b"x",
    "digits of a timestamp": b"a 1 " + b"9" * LONG + b"x",
    "a label without end": b'a{b="' + b"c" * LONG,
    "backslashes": b'a{b="' + b"\\" * LONG,
    "escapes": b'a{b="' + b"\\n" * (LONG // 2) + b'"} 1',
    "labels": b"a{" + b"".join(b'l%d="",' % i for i in range(LONG // 8)) + b"x",
    "spaces before a brace": b"a" + b" " * LONG + b"{",
    "spaces in labels": b"a{" + b" " * LONG + b"b" + b" " * LONG + b"=",
    "an exemplar": b"a 1 #" + b" #" * (LONG // 2) + b"\t",
}


@pytest.mark.parametrize("case", HARD)
def test_no_line_takes_long(case: str) -> None:
    """One match of a pattern holds the interpreter: it must end before the sampler's next turn is late."""

    def read() -> None:
        with contextlib.suppress(LineError):
            parse(HARD[case])

    best = min(timeit.repeat(read, number=1, repeat=3))
    assert best < 0.05, f"{best * 1000:.0f} ms"
