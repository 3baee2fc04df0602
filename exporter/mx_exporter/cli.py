"""The door: `mx-exporter`. Reads the settings, starts the exporter, waits for a signal; or looks once and prints."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading

from mx_exporter.app import Exporter
from mx_exporter.config import OPTIONS, settings
from mx_exporter.errors import ConfigurationError

_DESCRIPTION = """\
Measures how busy this node's RDMA NICs and inference engines are, and serves it as Prometheus metrics:
one mx_source_load in [0, 1] for every source. Run it on every node, with the host's /sys.
"""
_EPILOG = """\
Every option is also an environment variable, given in brackets, and a key of the --config file; a flag goes before
the variable, the variable before the file. What only the file can say is in docs/exporter.md.

  mx-exporter --once                                       what is on this node, as a table
  mx-exporter --listen :9500 --sysfs /host/sys --discovery kubernetes --node $NODE_NAME
"""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        "mx-exporter", description=_DESCRIPTION, epilog=_EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for option in OPTIONS:
        default = f"; default {option.default}" if option.default else ""
        made.add_argument(option.flag, metavar=option.metavar, help=f"{option.help}{default} [{option.variable}]")
    made.add_argument("--config", metavar="FILE", help="a YAML file of settings [MX_EXPORTER_CONFIG]")
    made.add_argument("--once", action="store_true", help="look for one window, print what is there and why, and end")
    made.add_argument("--verbose", action="store_true", help="log more")
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
