"""Readings to rates: a short run of samples per port and direction, kept only while nothing broke it.

Pure: a track and a count make the next track. A run ends when the counter cannot be read, goes backwards, belongs to
another device or files than before, or was not looked at for too long; what follows starts from its own first sample,
so that no rate ever spans a break. The link's limit is kept with every sample, so that no utilization is ever a sum of
bytes at one limit divided by another.
"""

from __future__ import annotations

import dataclasses

from mx_exporter.model import Count


@dataclasses.dataclass(frozen=True, slots=True)
class Timing:
    """How often samples come and over how long they are averaged, in seconds."""

    interval: float = 1.0
    window: float = 3.0
    peak: float = 30.0

    @property
    def longest_gap(self) -> float:
        """Two samples further apart than this are not of one run; slow devices may take a few seconds."""
        return max(self.window + self.interval, 10.0)


@dataclasses.dataclass(frozen=True, slots=True)
class Sample:
    """A counter at a time, and the link's limit then."""

    at: float
    value: int
    limit: float | None


@dataclasses.dataclass(frozen=True, slots=True)
class Track:
    """One direction of one port: its unbroken run of samples, oldest first, and why there is no rate."""

    identity: str = ""
    samples: tuple[Sample, ...] = ()
    reason: str | None = None

    @property
    def total(self) -> int | None:
        """The counter itself, in bytes."""
        return self.samples[-1].value if self.samples else None


def advance(track: Track, identity: str, count: Count, limit: float | None, timing: Timing) -> Track:
    """The track after one more count."""
    if count.value is None:
        return Track(identity, (), count.reason)
    sample = Sample(count.at, count.value, limit)
    last = track.samples[-1] if track.samples else None
    if last is None:
        return Track(identity, (sample,), "baseline")
    if identity != track.identity or sample.value < last.value:
        return Track(identity, (sample,), "reset")
    if sample.at - last.at > timing.longest_gap:
        return Track(identity, (sample,), "gap")
    if sample.at <= last.at:
        return track  # no time has passed: nothing to divide by
    return Track(identity, _within(track.samples, sample, timing), None)


def restarted(track: Track) -> Track:
    """The track as if its last sample were its first; one without samples keeps its reason."""
    return dataclasses.replace(track, samples=track.samples[-1:], reason="reset") if track.samples else track


def _within(samples: tuple[Sample, ...], sample: Sample, timing: Timing) -> tuple[Sample, ...]:
    """The samples with the new one, without those that no window can begin at any more."""
    begin = _begin(samples, sample.at, timing)
    return (*samples[begin:], sample)


def _begin(samples: tuple[Sample, ...], now: float, timing: Timing) -> int:
    """Where a window that ends now begins: the latest sample at least a window old, give or take half an interval."""
    oldest = now - timing.window + timing.interval / 2
    return max((index for index, sample in enumerate(samples) if sample.at <= oldest), default=0)


def rate(track: Track) -> float | None:
    """Bytes a second over the window, or over what there is of it at one limit; None before the second sample."""
    run = _at_one_limit(track.samples)
    return _slope(run[0], run[-1]) if len(run) > 1 else None


def step(track: Track) -> float | None:
    """Bytes a second between the last two samples."""
    run = _at_one_limit(track.samples)
    return _slope(run[-2], run[-1]) if len(run) > 1 else None


def _at_one_limit(samples: tuple[Sample, ...]) -> tuple[Sample, ...]:
    """The samples since the limit last changed."""
    for index in range(len(samples) - 1, 0, -1):
        if samples[index - 1].limit != samples[-1].limit:
            return samples[index:]
    return samples


def _slope(first: Sample, last: Sample) -> float:
    return (last.value - first.value) / (last.at - first.at)
