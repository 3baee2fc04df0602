"""The door: `mx-exporter`. Reads the settings, starts the exporter, waits for a signal; or looks once and prints."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import textwrap
import threading
from typing import NoReturn

from mx_exporter.app import Exporter
from mx_exporter.config import FILE_ONLY, OPTIONS, settings
from mx_exporter.errors import ConfigurationError
from mx_exporter.telemetry import build_info

_DESCRIPTION = """\
Measures how busy this node's RDMA NICs and inference engines are, and serves it as Prometheus metrics:
one mx_source_load in [0, 1] for every source. Run it on every node, with the host's /sys.
"""
_SECTIONS = "\n".join(
    textwrap.fill(f"{name} {{{', '.join(keys)}}}", 110, initial_indent="  ", subsequent_indent="    ")
    for name, keys in FILE_ONLY.items()
)
_EPILOG = f"""\
Where a variable is given in brackets, it is the same as the flag; a flag goes before it, it goes before the --config
file. The file has the same options as keys, spelt podResources for --pod-resources. What only the file can say (the
project's docs/exporter.md explains it): peak, limits, resource, and
{_SECTIONS}

  mx-exporter --once                                       what is on this node, as a table
  mx-exporter --listen :9500 --sysfs /host/sys --discovery kubernetes --node $NODE_NAME
"""


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"mx-exporter: {message}: see mx-exporter --help\n")


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = _Parser(
        "mx-exporter", description=_DESCRIPTION, epilog=_EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for option in OPTIONS:
        default = f"; default {option.default}" if option.default else ""
        made.add_argument(option.flag, metavar=option.metavar, help=f"{option.help}{default} [{option.variable}]")
    made.add_argument("--config", metavar="FILE", help="a YAML file of settings [MX_EXPORTER_CONFIG]")
    made.add_argument("--once", action="store_true", help="look for one window, print what is there and why, and end")
    made.add_argument("--verbose", action="store_true", help="log more")
    made.add_argument("--version", action="version", version=f"mx-exporter {build_info()['version']}")
    return made


def main(argv: list[str] | None = None) -> int:
    """Runs the exporter until SIGTERM or SIGINT.

    Returns:
        0; 2 when what it was given cannot be used, after one line that says what and how to mend it.
    """
    arguments = parser().parse_args(argv)
    logging.basicConfig(
        level=logging.DEBUG if arguments.verbose else logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    try:
        exporter = Exporter(settings(arguments, os.environ))
        return _look(exporter) if arguments.once else _serve(exporter)
    except ConfigurationError as error:
        print(f"mx-exporter: {error}", file=sys.stderr)
        return 2


def _serve(exporter: Exporter) -> int:
    done = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: done.set())
    with exporter:
        while not done.wait(3600):
            pass
    return 0


def _look(exporter: Exporter) -> int:
    from mx_exporter.once import report

    logging.getLogger().setLevel(logging.ERROR)  # what is wrong is in the report
    print(report(exporter.look()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
