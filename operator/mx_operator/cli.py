"""The door `mx-operator`: run the loops, check a policy file, or show what one cycle would do."""

from __future__ import annotations

import argparse
import asyncio
import importlib.metadata
import os
import sys
from collections.abc import Mapping
from typing import Final, NoReturn

import mx_wire
from mx_operator.policies import Limits, PolicyError, read_policies
from mx_operator.telemetry import logs

_DESCRIPTION: Final = """\
Writes every ModelExpress source's load, as your Prometheus knows it, to the MX server, so that targets pull from
sources with headroom. It never keeps a source alive: it writes only within a window after a heartbeat of the source
itself, and only what a fresh sample says.
"""
_EPILOG: Final = """\
Where a variable is given in brackets, it is the same as the flag; a flag goes before the variable.

  mx-operator check policy.yaml            is it right, and what will it do
  mx-operator plan policy.yaml             one cycle without writing: every source, and why
  mx-operator run --policy policy.yaml     without Kubernetes; the file is read again when it changes
  mx-operator run                          in a cluster: SourceLoadPolicy resources (kubectl get slp)
"""


_CHOICES: Final = {
    "source_metrics": ("MX_OPERATOR_SOURCE_METRICS", ("on", "off")),
    "written_metrics": ("MX_OPERATOR_WRITTEN_METRICS", ("on", "off")),
    "log_format": ("MX_OPERATOR_LOG_FORMAT", ("text", "json")),
    "log_level": ("MX_OPERATOR_LOG_LEVEL", ("debug", "info", "warning", "error")),
}


class UsageError(ValueError):
    """Something the door was given cannot be used; the message names it and the fix."""


def main(argv: list[str] | None = None) -> int:
    """Run a command.

    Returns:
        0; 2 when what it was given cannot be used, after one line that says what and how to mend it.
    """
    arguments = parser(os.environ).parse_args(argv)
    try:
        _check_choices(arguments)
        logs.configure(getattr(arguments, "log_format", "text"), getattr(arguments, "log_level", "warning"))
        return int(arguments.command(arguments))
    except PolicyError as error:
        _complain(error)
    except (UsageError, mx_wire.ConfigurationError, OSError) as error:
        print(f"mx-operator: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        return 130
    return 2


def _check_choices(arguments: argparse.Namespace) -> None:
    """The argument parser checks what comes as a flag, not what comes from the environment."""
    for name, (variable, choices) in _CHOICES.items():
        given = getattr(arguments, name, None)
        if given is not None and given not in choices:
            raise UsageError(f"{variable}={given}: write one of {', '.join(choices)}")


def _complain(error: PolicyError) -> None:
    """One line a mistake."""
    for finding in error.findings:
        print(f"mx-operator: {error.subject}: {finding}", file=sys.stderr)


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"mx-operator: {message}: see {self.prog} --help\n")


def parser(environment: Mapping[str, str]) -> argparse.ArgumentParser:
    """The command line, its defaults from the environment."""
    made = _Parser(
        "mx-operator", description=_DESCRIPTION, epilog=_EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    version = f"mx-operator {importlib.metadata.version('mx-source-load')}"
    made.add_argument("--version", action="version", version=version)
    commands = made.add_subparsers(required=True, metavar="COMMAND")
    _run(commands.add_parser("run", help="run until told to stop"), environment)
    for name, command, words in (
        ("check", _check_command, "validate a policy file and explain it"),
        ("plan", _plan_command, "run one cycle without writing and print the table of sources"),
    ):
        one = commands.add_parser(name, help=words)
        one.add_argument("file", metavar="FILE", help="a YAML file of SourceLoadPolicy documents")
        one.add_argument(
            "--allow-endpoint",
            action="append",
            metavar="PATTERN",
            default=None,
            help="as of run [MX_OPERATOR_ALLOW_ENDPOINTS, separated by commas]",
        )
        one.set_defaults(command=command, environment=environment)
        if name == "plan":
            one.add_argument(
                "--watch",
                type=float,
                default=0.0,
                metavar="SECONDS",
                help="watch heartbeats for so long first: shows what a running operator would write",
            )
    return made


def _run(one: argparse.ArgumentParser, environment: Mapping[str, str]) -> None:
    get = environment.get
    one.add_argument(
        "--policy",
        metavar="FILE",
        default=get("MX_OPERATOR_POLICY"),
        help="a YAML file of policies; without it, the cluster's SourceLoadPolicy resources [MX_OPERATOR_POLICY]",
    )
    one.add_argument(
        "--listen",
        metavar="HOST:PORT",
        default=get("MX_OPERATOR_LISTEN", "127.0.0.1:9600"),
        help="for /metrics, /healthz, /readyz, /status; default 127.0.0.1:9600 [MX_OPERATOR_LISTEN]",
    )
    one.add_argument(
        "--allow-endpoint",
        action="append",
        metavar="PATTERN",
        default=None,
        help="only hosts that match may be named by policies, such as '*.monitoring.svc:9090'; may be repeated;"
        " any host without it [MX_OPERATOR_ALLOW_ENDPOINTS, separated by commas]",
    )
    one.add_argument(
        "--source-metrics",
        choices=_CHOICES["source_metrics"][1],
        default=get("MX_OPERATOR_SOURCE_METRICS", "on"),
        help="two series per listed source, with its per-process id as a label; default on"
        " [MX_OPERATOR_SOURCE_METRICS]",
    )
    one.add_argument(
        "--written-metrics",
        choices=_CHOICES["written_metrics"][1],
        default=get("MX_OPERATOR_WRITTEN_METRICS", "off"),
        help="two more: the load written last and when, for the dashboard MX / Source; default off"
        " [MX_OPERATOR_WRITTEN_METRICS]",
    )
    one.add_argument(
        "--scheme",
        default=get("MX_METRICS_SCHEME", ""),
        help="label value that tells this fleet's series from others' [MX_METRICS_SCHEME]",
    )
    one.add_argument(
        "--log-format",
        choices=_CHOICES["log_format"][1],
        default=get("MX_OPERATOR_LOG_FORMAT", "text"),
        help="default text [MX_OPERATOR_LOG_FORMAT]",
    )
    one.add_argument(
        "--log-level",
        choices=_CHOICES["log_level"][1],
        default=get("MX_OPERATOR_LOG_LEVEL", "info"),
        help="default info [MX_OPERATOR_LOG_LEVEL]",
    )
    one.set_defaults(command=_run_command, environment=environment)


def _run_command(arguments: argparse.Namespace) -> int:
    from mx_operator import app

    options = app.Options(
        listen=_address(arguments.listen),
        policy=arguments.policy,
        limits=_limits(arguments),
        scheme=arguments.scheme,
        per_source=arguments.source_metrics == "on",
        written=arguments.written_metrics == "on",
    )
    try:
        asyncio.run(app.run(options))
    except app.NoCluster as error:
        raise UsageError(str(error)) from error
    return 0


def _check_command(arguments: argparse.Namespace) -> int:
    policies, warnings = read_policies(arguments.file, _limits(arguments))
    from mx_operator.policies.explain import explain

    for policy in policies:
        print(explain(policy))
    for warning in warnings:
        print(f"warning: {warning}")
    return 0


def _plan_command(arguments: argparse.Namespace) -> int:
    from mx_operator import dry

    policies, warnings = read_policies(arguments.file, _limits(arguments))
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr)
    return asyncio.run(dry.show(policies, arguments.watch))


def _limits(arguments: argparse.Namespace) -> Limits:
    given = arguments.allow_endpoint
    if given is None:
        given = arguments.environment.get("MX_OPERATOR_ALLOW_ENDPOINTS", "").split(",")
    return Limits(tuple(pattern.strip() for pattern in given if pattern.strip()))


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise UsageError(f"--listen {text!r}: give HOST:PORT, such as 127.0.0.1:9600 or :9600")
    return host.strip("[]") or "0.0.0.0", int(port)  # noqa: S104 (asked for)


if __name__ == "__main__":
    sys.exit(main())
