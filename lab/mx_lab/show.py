"""What a person sees: the live table while the lab runs, the report at its end, and the same as JSON."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from mx_lab.fleet import Busy, LabSource
from mx_lab.results import PENALTY, Evidence, Hop, PolicyResult, Verdict, expected_saving, saving
from mx_lab.settings import POLICIES, Settings


@dataclasses.dataclass(frozen=True)
class SourceNow:
    """A source at this moment."""

    source: LabSource
    nic: float
    kv: float
    listed: float | None
    age: float | None
    chosen: Mapping[str, int]


def live(phase: str, sources: Sequence[SourceNow]) -> RenderableType:
    """The table that moves."""
    table = Table(box=None, pad_edge=False)
    for title in ("source", "node", "engine", "busy with"):
        table.add_column(title)
    for title in ("NIC tx", "KV", "listed load", "age s", *POLICIES):
        table.add_column(title, justify="right")
    for now in sources:
        source = now.source
        table.add_row(
            source.name,
            str(source.node),
            source.engine,
            source.busy.value if source.busy is not Busy.NO else "",
            f"{now.nic:.2f}",
            f"{now.kv:.2f}",
            "-" if now.listed is None else f"{now.listed:.2f}",
            "-" if now.age is None else f"{now.age:.0f}",
            *(str(now.chosen.get(policy, 0)) for policy in POLICIES),
            style="bold red" if source.busy is not Busy.NO else "",
        )
    return Group(Text(phase, style="bold"), table)


def live_line(phase: str, sources: Sequence[SourceNow]) -> str:
    """The same in one line, where no terminal is."""
    listed = sum(now.listed is not None for now in sources)
    return f"{phase}: {listed} of {len(sources)} sources with a listed load"


def report(results: Sequence[PolicyResult], hops: Sequence[Hop], followed: str, verdict: Verdict) -> RenderableType:
    """The tables at the end."""
    shares = Table(title="First choices and transfer times", title_justify="left", box=None, pad_edge=False)
    shares.add_column("policy")
    for title in ("starts", "on busy sources", "pulls", "mean ms", "p50 ms", "p99 ms"):
        shares.add_column(title, justify="right")
    for result in results:
        shares.add_row(*_policy_row(result))
    way = Table(title=f"{followed} from counter to score", title_justify="left", box=None, pad_edge=False)
    for title, justify in (("hop", "left"), ("value", "right"), ("age s", "right"), ("what", "left")):
        way.add_column(title, justify=justify)  # type: ignore[arg-type]
    for hop in hops:
        way.add_row(hop.station, _number(hop.value, ".3f"), _number(hop.age, ".1f"), hop.note)
    less, expected = saving(results), expected_saving(results)
    lines = []
    if less is not None and expected is not None:
        lines.append(Text(_saved(less, expected)))
    return Group(shares, Text(), way, Text(), *lines, _verdict(verdict))


def _saved(less: float, expected: float) -> str:
    how = f"{less:.1%} shorter" if less >= 0 else f"{-less:.1%} longer"
    return (
        f"In the mean a pull under load_aware was {how} than under random; by their first choices alone, with a pull\n"
        f"from a busy source {1 + PENALTY:.2f} times as long as any other, it would be {expected:.1%}.\n"
        "load_aware is best for targets that start one by one, as here; for many at once: headroom (docs/selector.md)."
    )


def _policy_row(result: PolicyResult) -> tuple[str, ...]:
    times, share = result.times, "-" if result.busy_share is None else f"{result.busy_share:.1%}"
    if times is None:
        return (result.policy, f"{result.starts:,}", share, "0", "-", "-", "-")
    milliseconds = (f"{1000 * seconds:.0f}" for seconds in (times.mean, times.p50, times.p99))
    return (result.policy, f"{result.starts:,}", share, f"{times.count:,}", *milliseconds)


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _verdict(verdict: Verdict) -> Text:
    if verdict.steered:
        return Text(f"STEERED: {verdict.reasons[0]}.", style="bold green")
    return Text("\n".join(["NOT STEERED:", *(f"  - {reason}" for reason in verdict.reasons)]), style="bold red")


def write_json(
    folder: pathlib.Path,
    settings: Settings,
    results: Sequence[PolicyResult],
    hops: Sequence[Hop],
    evidence: Evidence,
    verdict: Verdict,
) -> pathlib.Path:
    """Write everything measured as `report.json` into `folder`, which is made where missing."""
    folder.mkdir(parents=True, exist_ok=True)
    options = dataclasses.asdict(settings) | {"without": sorted(settings.without), "report": str(folder)}
    options["keep"] = None if settings.keep is None else str(settings.keep)
    content = {
        "settings": options,
        "policies": [dataclasses.asdict(result) for result in results],
        "transfer_time_below_random": saving(results),
        "expected_below_random": expected_saving(results),
        "hops": [dataclasses.asdict(hop) for hop in hops],
        "evidence": dataclasses.asdict(evidence),
        "verdict": dataclasses.asdict(verdict),
    }
    file = folder / "report.json"
    file.write_text(json.dumps(content, indent=2) + "\n")
    return file
