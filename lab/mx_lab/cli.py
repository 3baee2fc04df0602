"""`mx-lab`: the door to a whole fleet on one machine."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import logging
import os
import pathlib
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NoReturn, cast

from rich.console import Console
from rich.live import Live

from mx_lab import run as running
from mx_lab import show
from mx_lab.fleet import make_fleet
from mx_lab.processes import ProcessError
from mx_lab.settings import Settings
from mx_selector.settings import version

_DEFAULTS: Final = Settings()
_SAME_WISH: Final = 2.0  # seconds
_EPILOG: Final = """\
exit status: 0 targets were steered away from busy sources; 1 they were not (the report says why); 2 the command
line is wrong; 3 a part did not start; 130 interrupted
"""


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"mx-lab: {message}: see {self.prog} --help\n")


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = _Parser("mx-lab", description="A whole fleet on one machine, to see the load steer targets.")
    top.add_argument("--version", action="version", version=f"mx-lab {version()}")
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
    time_.add_argument(
        "--heartbeat", type=_heartbeat, default=_DEFAULTS.heartbeat, help="seconds (default %(default)g)"
    )
    time_.add_argument("--scrape", type=_seconds, default=_DEFAULTS.scrape, help="seconds (default %(default)g)")
    broken = run.add_argument_group("what breaks when a part is missing")
    broken.add_argument(
        "--without",
        action="append",
        choices=["operator", "exporter"],
        default=[],
        metavar="PART",
        help="operator or exporter; may be given twice",
    )
    broken.add_argument("--server-drops-load", action="store_true", help="the server accepts loads and drops them")
    run.add_argument("--seed", type=int, default=_DEFAULTS.seed, help="of everything random here (default %(default)s)")
    run.add_argument("--stay", action="store_true", help="go on after the report until Ctrl-C, to look around")
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


def _heartbeat(text: str) -> float:
    return _number(text, "a number of seconds", 5, 600)  # as policies have it


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
        stay=arguments.stay,
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
        if phase != running.STAYING and text != said["line"] and now - cast("float", said["at"]) >= 5:
            console.print(text, highlight=False)
            said.update(line=text, at=now)

    yield line


class _Interrupts:
    """SIGINT and SIGTERM cancel the run, so that everything started is stopped; asked again later, it ends at once.

    A second signal within two seconds is the same wish (`timeout` and shells send it to the process and to its group),
    and raised into the middle of stopping it would leave things behind. The handlers are Python's own, not the loop's,
    which would give them up when it closes, before everything is over.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, task: asyncio.Task[object]) -> None:
        self._loop, self._task, self._first = loop, task, 0.0
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._asked)

    def _asked(self, *_: object) -> None:
        if not self._first:
            self._first = time.monotonic()
            with contextlib.suppress(RuntimeError):  # the loop is closed: it is over anyway
                self._loop.call_soon_threadsafe(self._task.cancel)
        elif time.monotonic() - self._first > _SAME_WISH:
            print("mx-lab: ended at once; its temporary folder is left", file=sys.stderr, flush=True)
            os._exit(130)  # the kernel ends the children with us


async def _until_signalled(
    settings: Settings, display: running.Show, say: running.Say, finished: Callable[[running.Outcome], None]
) -> running.Outcome:
    task = asyncio.current_task()
    assert task is not None
    _Interrupts(asyncio.get_running_loop(), task)
    return await running.run(settings, display, say, finished)


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
            say = functools.partial(console.print, highlight=False, soft_wrap=True)
            tell = functools.partial(_tell, console, settings)
            outcome = asyncio.run(_until_signalled(settings, display, say, tell))
    except (KeyboardInterrupt, asyncio.CancelledError):
        # At its very end Python gives its handlers up; what comes then would change the exit status.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        print("mx-lab: interrupted; everything is stopped", file=sys.stderr)
        return 130
    except ProcessError as error:
        print(f"mx-lab: {error}", file=sys.stderr)
        return 3
    return 0 if outcome.verdict.steered else 1


def _tell(console: Console, settings: Settings, outcome: running.Outcome) -> None:
    console.print(show.report(outcome.results, outcome.hops, outcome.followed, outcome.verdict))
    if settings.report is not None:
        written = show.write_json(
            settings.report, settings, outcome.results, outcome.hops, outcome.evidence, outcome.verdict
        )
        console.print(f"report: {written}", highlight=False)
