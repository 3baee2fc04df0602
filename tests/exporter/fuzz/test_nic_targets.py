"""The NIC side's fuzzing targets under hypothesis: bytes of every kind, and bytes that look like the real thing."""

from __future__ import annotations

import pathlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.exporter.fuzz import nic_targets
from tests.exporter.fuzz.nic_targets import FILES, TARGETS

CORPUS = pathlib.Path(__file__).parent / "corpus"

numbers = st.integers(0, 2**66).map(str) | st.sampled_from(["4294967295", "18446744073709551615", "-1", "0"])
texts = numbers | st.sampled_from(
    ["4: ACTIVE", "1: DOWN", "4:", "400 Gb/sec (4X NDR)", "40 Gb/sec (4X QDR)", "0 GB/sec", "2.5 Gb/sec (1X SDR)",
     "N/A (no PMA)", "\0", "\0\0", "", "Ethernet", "InfiniBand", "eth0", "bond0", "eth0 eth1", "up", "down", "active",
     "backup", "400000", "../../etc", "1e9", "0x10", "\uff11\uff12"]
)  # fmt: skip
writes = st.tuples(st.integers(0, len(FILES) - 1), texts).map(lambda pair: bytes([pair[0]]) + pair[1].encode())
ticks = st.integers(1, 6).map(lambda count: b"+" * count)
trees = st.lists(writes | ticks, max_size=25).map(b"\n".join)

words = st.sampled_from(
    ["window: ", "interval: ", "limits: ", "scrape: ", "tls: ", "auth: ", "otlp: ", "resource: ", "listen: ", "peak: ",
     "3", "0.1", "-1", "1e400", ".nan", "true", "{", "}", "[", "]", "mlx5_0: ", "400", "certFile: ", "timeout: ",
     "maxPage: ", "a: b", "127.0.0.1:1", "\n", "\n  ", "&a ", "*a", "<<: ", "? ", "!!python/object:x ", "'", '"',
     "2024-13-45", "null", ", ", "--- "]
)  # fmt: skip
documents = st.lists(words, max_size=30).map(lambda parts: "".join(parts).encode())
headers = st.tuples(
    st.sampled_from(["Basic ", "basic  ", "Bearer ", "bearer", "Digest ", ""]),
    st.sampled_from(
        ["a-token-of-a-test", "dXNlcjphLXBhc3N3b3JkLW9mLWEtdGVzdA==", "user:a-password-of-a-test", "=", ""]
    ),
    st.text(max_size=3),
).map(lambda parts: "".join(parts).encode())

LIKELY = {
    "tree": trees,
    "value": texts.map(str.encode),
    "config_file": documents,
    "pod_resources": st.binary(max_size=60).map(lambda body: b"\x0a" + bytes([len(body)]) + body),
    "login": headers,
}


@pytest.mark.parametrize("target", TARGETS)
@settings(max_examples=200, deadline=None)
@given(st.data())
def test_any_bytes(target: str, data: st.DataObject) -> None:
    TARGETS[target](data.draw(LIKELY[target] | st.binary(max_size=300)))


@pytest.mark.long
@pytest.mark.parametrize("target", TARGETS)
@settings(max_examples=20_000, deadline=None)
@given(st.data())
def test_any_bytes_for_long(target: str, data: st.DataObject) -> None:
    TARGETS[target](data.draw(LIKELY[target] | st.binary(max_size=1000)))


@pytest.mark.parametrize("target", TARGETS)
def test_the_corpus(target: str) -> None:
    """What fuzzing found worth keeping, and what it began with."""
    found = sorted((CORPUS / target).iterdir())
    assert found
    for file in found:
        TARGETS[target](file.read_bytes())


@pytest.mark.parametrize(
    "broken",
    [
        ("tree", "mx_exporter.nics.ports._ratio", lambda rate, reason, limit: ((rate or 0) / (limit or 1), None)),
        ("tree", "mx_exporter.nics.readings.parse_count", lambda text: len(text)),
        ("tree", "mx_exporter.nics.readings.parse_state", lambda text: True),
        ("value", "tests.exporter.fuzz.nic_targets.parse_count", lambda text: 0),
        ("login", "mx_exporter.access._among", lambda given, accepted: True),
    ],
    ids=lambda broken: broken[1],
)
def test_a_target_can_fail(broken: tuple[str, str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each law is broken once on purpose: a target that cannot fail finds nothing."""
    target, name, replacement = broken
    monkeypatch.setattr(name, replacement)
    seeds = sorted((CORPUS / target).iterdir())
    with pytest.raises((AssertionError, ValueError, KeyError)):
        for file in seeds:
            getattr(nic_targets, target)(file.read_bytes())
