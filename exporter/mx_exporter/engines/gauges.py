"""The table of engines: which gauge of which engine says how full its KV cache is, and what to make of it.

`gauges.yaml` beside this module is the built-in table; a file of the same form named in the configuration adds to it.
Read once at start-up; `readings` follows it, `lines` filters pages by its names.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.resources
import pathlib
import re
from collections.abc import Mapping

from mx_exporter.documents import Section, read
from mx_exporter.errors import ConfigurationError

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*\Z")
_WORD = re.compile(r"[a-z][a-z0-9_]{0,31}\Z")
_FULL = {"ratio": 1.0, "percent": 100.0}


@dataclasses.dataclass(frozen=True, slots=True)
class Pick:
    """Chooses series: any of these metrics, with these label values."""

    metrics: tuple[str, ...]  # canonical names: no colon, no ray_
    where: tuple[tuple[str, str], ...] = ()
    with_labels: tuple[str, ...] = ()
    without_labels: tuple[str, ...] = ()

    def takes(self, metric: str, labels: Mapping[str, str]) -> bool:
        """Whether a series of `metric` with `labels` is chosen."""
        return (
            metric in self.metrics
            and all(labels.get(name) == value for name, value in self.where)
            and all(name in labels for name in self.with_labels)
            and not any(name in labels for name in self.without_labels)
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Rule:
    """One way in which an engine says its usage."""

    pick: Pick
    of: Pick | None = None  # divide by this one
    scale: float = 1.0  # what the gauge shows when the cache is full
    zero_needs: Pick | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Engine:
    """One kind of engine."""

    name: str
    usage: tuple[Rule, ...]
    index: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    awake: Pick | None = None
    activity: tuple[str, ...] = ()
    running: Pick | None = None
    holds_at_rest: bool = False

    def metrics(self) -> frozenset[str]:
        """Every metric that is read for this engine, by canonical name."""
        picks = [self.awake, self.running]
        picks += [pick for rule in self.usage for pick in (rule.pick, rule.of, rule.zero_needs)]
        return frozenset(self.activity).union(*(pick.metrics for pick in picks if pick))


@dataclasses.dataclass(frozen=True)
class Table:
    """All engines that are looked for."""

    engines: tuple[Engine, ...]

    @functools.cached_property
    def by_metric(self) -> Mapping[str, tuple[Engine, ...]]:
        """From the canonical name of every metric that is read to the engines that read it."""
        metrics = frozenset[str]().union(*(engine.metrics() for engine in self.engines))
        return {metric: tuple(e for e in self.engines if metric in e.metrics()) for metric in sorted(metrics)}

    def canonical(self, name: str) -> str | None:
        """The canonical name of a metric as a page spells it; None when nobody reads it."""
        plain = canonical(name)
        for candidate in (plain, plain.removeprefix("ray_")):
            if candidate in self.by_metric:
                return candidate
        return None


def canonical(name: str) -> str:
    """The name without colons: Ray and some gateways replace them by underscores, so both are one metric."""
    return name.replace(":", "_")


@functools.cache
def builtin() -> Table:
    """The table that ships with the exporter."""
    text = importlib.resources.files(__package__).joinpath("gauges.yaml").read_text("utf-8")
    return Table(parse(text, "gauges.yaml"))


def load(path: pathlib.Path | None) -> Table:
    """The built-in table with the engines of `path` added; one of the same name is replaced.

    Raises:
        ConfigurationError: The file cannot be read or is not of the form of `gauges.yaml`.
    """
    if path is None:
        return builtin()
    own = parse(read(path, "a file of engines"), str(path))
    names = {engine.name for engine in own}
    return Table((*(engine for engine in builtin().engines if engine.name not in names), *own))


def parse(text: str, source: str) -> tuple[Engine, ...]:
    """Read a table.

    Args:
        text: YAML of the form that `gauges.yaml` describes.
        source: What to call it in an error.

    Raises:
        ConfigurationError: It is not of that form; one line says where and what is wanted.
    """
    body = Section.document(text, source)
    engines = tuple(_engine(entry) for entry in body.sections("engines"))
    body.finish()
    names = [engine.name for engine in engines]
    for name in names:
        if names.count(name) > 1:
            raise ConfigurationError(f"{source}: engine {name!r} appears twice: merge the two entries")
    return engines


def _engine(body: Section) -> Engine:
    name = body.text("engine") or ""
    if not _WORD.match(name):
        body.fail("give the engine a short name of lower-case letters, digits and underscores", "engine")
    rules = tuple(_rule(entry) for entry in body.sections("usage"))
    if not rules:
        body.fail("name at least one gauge", "usage")
    engine = Engine(
        name=name,
        usage=rules,
        index=body.texts("index"),
        others=body.texts("others"),
        awake=_pick(body.short("awake", "metric")),
        activity=_metrics(body, "activity"),
        running=_pick(body.short("running", "metric")),
        holds_at_rest=body.take("holds_at_rest", bool, False),
    )
    body.finish()
    return engine


def _rule(body: Section) -> Rule:
    unit = body.text("unit") or "ratio"
    if unit not in _FULL:
        body.fail("must be ratio or percent", "unit")
    of, zero_needs = _pick(body.short("of", "metric")), _pick(body.short("zero_needs", "metric"))
    return Rule(_series(body), of, _FULL[unit], zero_needs)


def _pick(body: Section | None) -> Pick | None:
    return None if body is None else _series(body)


def _series(body: Section) -> Pick:
    metrics = _metrics(body, "metric")
    if not metrics:
        body.fail("name the gauge", "metric")
    pick = Pick(metrics, body.pairs("where"), body.texts("with"), body.texts("without"))
    body.finish()
    return pick


def _metrics(body: Section, key: str) -> tuple[str, ...]:
    names = body.texts(key)
    for name in names:
        if not _NAME.match(name):
            body.fail(f"{name!r} is no name of a metric", key)
    return tuple(canonical(name) for name in names)
