"""OpenMetrics with timestamps: how histories get into a Prometheus, and out of one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from tests.parts.prometheus import Prometheus

Labels = Mapping[str, str]
#: One series: its name, its labels, and (seconds, value) pairs.
Series = tuple[str, Labels, Iterable[tuple[float, str]]]
EVERYTHING: Final = '{__name__=~".+"}'


def line(name: str, labels: Labels, value: str, at: float) -> str:
    """One sample."""
    inside = ",".join(f'{key}="{_escaped(text)}"' for key, text in sorted(labels.items()))
    return f"{name}{{{inside}}} {value} {at:.3f}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def text(series: Iterable[Series]) -> str:
    """A whole file."""
    lines = [line(name, labels, value, at) for name, labels, samples in series for at, value in samples]
    return "\n".join([*lines, "# EOF\n"])


def moved(recording: str, seconds: float) -> str:
    """A file with every timestamp later by `seconds`."""
    lines = []
    for sample in recording.splitlines():
        if not sample.startswith("#"):
            series, value, at = sample.rsplit(" ", 2)
            if _is_time(series.partition("{")[0]):
                value = f"{float(value) + seconds:.3f}"
            sample = f"{series} {value} {float(at) + seconds:.3f}"
        lines.append(sample)
    return "\n".join(lines) + "\n"


def _is_time(name: str) -> bool:
    """Whether a metric's value is a moment."""
    return name.endswith(("_timestamp_seconds", "_created"))


def dump(server: Prometheus, end: float, hours: int = 2) -> str:
    """All samples of a server's last hours before `end`, their zero being the first one's time."""
    found = server.api("query", query=f"{EVERYTHING}[{hours}h]", time=str(end))["result"]
    begin = min(float(series["values"][0][0]) for series in found)
    made: list[Series] = []
    for series in sorted(found, key=lambda one: sorted(one["metric"].items())):
        labels = dict(series["metric"])
        name = labels.pop("__name__")
        origin = begin if _is_time(name) else 0.0
        samples = [
            (float(at) - begin, f"{float(value) - origin:.3f}" if origin else value) for at, value in series["values"]
        ]
        made.append((name, labels, samples))
    return text(made)
