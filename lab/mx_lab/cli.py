"""`mx-lab`: the door to a whole fleet on one machine."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import pathlib
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final, cast

from rich.console import Console
from rich.live import Live

from mx_lab import run as running
from mx_lab import show
from mx_lab.fleet import make_fleet
from mx_lab.processes import ProcessError
from mx_lab.settings import Settings

_DEFAULTS: Final = Settings()
_EPILOG: Final = """\
exit status: 0 targets were steered away from busy sources; 1 they were not (the report says why); 2 the command
line is wrong; 3 a part did not start; 130 interrupted
"""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser("mx-lab", description="A whole fleet on one machine, to see the load steer targets.")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    run = commands.add_parser(
        "run",
        help="start the fleet, let targets pull, report who was steered where",
        description="Start a real Prometheus, the MX server, exporters and the operator around simulated nodes; "
        "let targets start and pull; report where they pulled from, and how long it took.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=_EPILOG,
    )
    fleet = run.add_argument_group("fleet")
    fleet.add_argument("--sources", type=_positive, default=_DEFAULTS.sources, help="default %(default)s")
    fleet.add_argument("--nodes", type=_positive, default=_DEFAULTS.nodes, help="default %(default)s")
    fleet.add_argument("--busy-nic", type=_count, default=1, help="sources with a busy NIC (default %(default)s)")
    fleet.add_argument("--busy-kv", type=_count, default=1, help="sources with a full KV cache (default %(default)s)")
    load = run.add_argument_group("targets")
    load.add_argument("--targets", type=_positive, default=_DEFAULTS.starts, help="target starts (default %(default)s)")
    load.add_argument("--duration", type=_seconds, default=_DEFAULTS.duration, help="seconds (default %(default)g)")
    load.add_argument("--weights", type=_gigabytes, default=1.0, help="GB that one pull moves (default %(default)g)")
    time_ = run.add_argument_group("rhythm")
    time_.add_argument("--heartbeat", type=_seconds, default=_DEFAULTS.heartbeat, help="seconds (default %(default)g)")
    time_.add_argument("--scrape", type=_seconds, default=_DEFAULTS.scrape, help="seconds (default %(default)g)")
    broken = run.add_argument_group("what breaks when a part is missing")
    broken.add_argument("--without", action="append", choices=["operator", "exporter"], default=[], metavar="PART")
    broken.add_argument("--server-drops-load", action="store_true", help="the server accepts loads and drops them")
    run.add_argument("--seed", type=int, default=_DEFAULTS.seed, help="of everything random here (default %(default)s)")
    run.add_argument("--report", type=pathlib.Path, metavar="DIR", help="write report.json there too")
    run.add_argument("--keep", type=pathlib.Path, metavar="DIR", help="keep Prometheus' data and all logs there")
    return top


def _number(text: str, what: str, low: float, high: float) -> float:
    with contextlib.suppress(ValueError):
        if low <= float(text) <= high:
            return float(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not {what} from {low:g} to {high:g}")


def _positive(text: str) -> int:
    return _whole(text, 1)


def _count(text: str) -> int:
    return _whole(text, 0)


def _whole(text: str, low: int) -> int:
    if not text.isdecimal() or not low <= int(text) <= 100_000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {low} to 100000")
    return int(text)


def _seconds(text: str) -> float:
    return _number(text, "a number of seconds", 1, 3600)


def _gigabytes(text: str) -> float:
    return _number(text, "a number of GB", 0.001, 1000)


def _settings(arguments: argparse.Namespace) -> Settings:
    return Settings(
        sources=arguments.sources,
        nodes=min(arguments.nodes, arguments.sources),
        busy_nic=arguments.busy_nic,
        busy_kv=arguments.busy_kv,
        starts=arguments.targets,
        duration=arguments.duration,
        heartbeat=arguments.heartbeat,
        scrape=arguments.scrape,
        weights=arguments.weights * 1e9,
        seed=arguments.seed,
        without=frozenset(arguments.without),
        server_drops_load=arguments.server_drops_load,
        report=arguments.report,
        keep=arguments.keep,
    )


def _wrong(settings: Settings) -> str | None:
    """What cannot work, found before anything is started."""
    made = ""
    try:
        make_fleet(settings.sources, settings.nodes, settings.busy_nic, settings.busy_kv, 16, settings.seed)
        for option, folder in (("--report", settings.report), ("--keep", settings.keep)):
            if folder is not None:
                made = f"{option} {folder}"
                folder.mkdir(parents=True, exist_ok=True)
        if settings.keep is not None and any(settings.keep.iterdir()):
            return f"--keep {settings.keep}: not empty: give a new folder"
    except ValueError as error:
        return str(error)
    except OSError as error:
        return f"{made}: {error.strerror}"
    return None


@contextlib.contextmanager
def _display(console: Console) -> Iterator[Callable[[str, Sequence[show.SourceNow]], None]]:
    """A live table on a terminal; elsewhere one line whenever something changed, at most every five seconds."""
    if console.is_terminal:
        with Live(console=console, refresh_per_second=4, transient=True) as table:
            yield lambda phase, sources: table.update(show.live(phase, sources))
        return
    said = {"line": "", "at": 0.0}

    def line(phase: str, sources: Sequence[show.SourceNow]) -> None:
        text, now = show.live_line(phase, sources), time.monotonic()
        if text != said["line"] and now - cast("float", said["at"]) >= 5:
            console.print(text, highlight=False)
            said.update(line=text, at=now)

    yield line


async def _until_signalled(settings: Settings, display: running.Show) -> running.Outcome:
    """The run, cancelled by SIGTERM as by Ctrl-C, so that everything started is stopped."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await running.run(settings, display)


def main(argv: list[str] | None = None) -> int:
    """Run the door; the exit status."""
    top = parser()
    settings = _settings(top.parse_args(argv))
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    console = Console()
    if not console.is_terminal:
        console = Console(width=120)
    if wrong := _wrong(settings):
        print(f"mx-lab: {wrong}", file=sys.stderr)
        return 2
    try:
        with _display(console) as display:
            outcome = asyncio.run(_until_signalled(settings, display))
    except (KeyboardInterrupt, asyncio.CancelledError):
        print("mx-lab: interrupted; everything is stopped", file=sys.stderr)
        return 130
    except ProcessError as error:
        print(f"mx-lab: {error}", file=sys.stderr)
        return 3
    console.print(show.report(outcome.results, outcome.hops, outcome.followed, outcome.verdict))
    if settings.report is not None:
        written = show.write_json(
            settings.report, settings, outcome.results, outcome.hops, outcome.evidence, outcome.verdict
        )
        console.print(f"report: {written}", highlight=False)
    return 0 if outcome.verdict.steered else 1
