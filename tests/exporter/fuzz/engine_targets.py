"""What fuzzers throw bytes at in the rooms of engines and discovery: each function takes any bytes and checks its laws.

`TARGETS` names them for the runner; hypothesis drives the same functions in the tests.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Callable

from mx_exporter.discovery import pods, sources_file
from mx_exporter.discovery.lists import each_item
from mx_exporter.engines import exposition, frozen, gauges, readings
from mx_exporter.engines.lines import LineFilter
from mx_exporter.errors import ConfigurationError

TABLE = gauges.builtin()
_NUMBER = re.compile(rb"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")
_MAX_LINE = 4096


def page(data: bytes) -> None:
    """A page in pieces: no crash, no value outside [0, 1], and none that does not stand on the page.

    The first byte chooses how the rest is cut into pieces.
    """
    size = 1 + (data[0] if data else 0) * 7
    body = data[1:]
    found = LineFilter(TABLE, _MAX_LINE)
    for start in range(0, len(body), size):
        found.feed(body[start : start + size])
    whole = LineFilter(TABLE, _MAX_LINE)
    whole.feed(body)
    assert (found.lines, found.overlong, found.whole, found.ended) == (
        whole.lines,
        whole.overlong,
        whole.whole,
        whole.ended,
    )
    result = readings.read(TABLE, found.lines)
    possible = _possible(body)
    for reading in result.readings:
        assert (reading.value is None) != (reading.reason is None)
        assert reading.value is None or 0 <= reading.value <= 1
        assert reading.value is None or not possible or min(abs(reading.value - value) for value in possible) < 1e-9
    still = frozen.observe(frozen.observe({}, result.readings, 0), result.readings, 100)
    for reading in result.readings:
        judged = frozen.judge(still, reading, 100, 60)
        assert judged.value in (reading.value, None)


def _possible(body: bytes) -> set[float]:
    """Every ratio that the numbers on a page can make, read in the plainest way; empty where they are too many."""
    numbers = {float(text) for text in _NUMBER.findall(body)}
    numbers = {number for number in numbers if math.isfinite(number)}
    if len(numbers) > 60:
        return set()
    ratios = {a / b for a, b in itertools.product(numbers, repeat=2) if b}
    return {min(1.0, max(0.0, value)) for value in numbers | ratios if -1e-6 <= value <= 1.05}


def line(data: bytes) -> None:
    """One line: a sample or a LineError."""
    try:
        sample = exposition.parse(data.replace(b"\n", b""))
    except exposition.LineError:
        return
    assert re.fullmatch(r"[a-zA-Z_:][a-zA-Z0-9_:]*", sample.name)


def engines_file(data: bytes) -> None:
    """A table of engines: engines, or one line that says what is wrong."""
    _told(lambda text: gauges.parse(text, "f"), data)


def static_file(data: bytes) -> None:
    """A static file: sources in order, or one line that says what is wrong."""
    _told(lambda text: sources_file.parse(text, "f"), data)


def _told(parse: Callable[[str], object], data: bytes) -> None:
    said = "f: "
    try:
        parse(data.decode("utf-8", "replace"))
    except ConfigurationError as error:
        said = str(error)
    assert "\n" not in said
    assert said.startswith("f: ")
    assert len(said) < 600


def pod(data: bytes) -> None:
    """A pod of any shape: a source with endpoints that can be scraped, or none."""
    try:
        given = json.loads(data)
    except (ValueError, RecursionError):
        return
    if not isinstance(given, dict):
        return
    for selected in (False, True):
        found = pods.found(given, "node-a", selected)
        for endpoint in found.source.endpoints if found.source else ():
            assert 1 <= endpoint.port <= 65535
            assert endpoint.scheme in ("http", "https")
            assert endpoint.path is None or re.fullmatch(r"/[!-~]*", endpoint.path)
        assert all("\n" not in complaint for complaint in found.complaints)


def pod_list(data: bytes) -> None:
    """A list of pods: each item and a version, or a ValueError; the same items as the whole document has."""
    found: list[object] = []
    try:
        version = each_item(data, found.append)
    except (ValueError, RecursionError):
        return
    document = json.loads(data)
    assert document["metadata"]["resourceVersion"] == version
    if isinstance(document.get("items"), list):
        assert found == [item for item in document["items"] if isinstance(item, dict)]


TARGETS: dict[str, Callable[[bytes], None]] = {
    "page": page,
    "line": line,
    "engines_file": engines_file,
    "static_file": static_file,
    "pod": pod,
    "pod_list": pod_list,
}
