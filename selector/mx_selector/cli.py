"""`mx-select`: what targets would choose from a server's sources now, for people.

`rank` shows one target's order and why, `forecast` how the next replicas would spread. Reads only: it lists, and
never writes to the server.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import grpc

from mx_selector import explanations, forecasts, listing, settings
from mx_selector.model import Target
from mx_selector.policies import registry
from mx_wire import ConfigurationError, P2pServiceStub, SourceInstanceRef, Tls, TokenFile, channel

_SERVER = ("MODEL_EXPRESS_URL", "MX_SERVER_ADDRESS")
_TOKEN_PATH = "MX_AUTH_TOKEN_PATH"  # noqa: S105 - a variable's name
_FORECAST = ("random", "rendezvous_hash", "load_aware", "headroom")


def main(argv: list[str] | None = None) -> int:
    """Run the command line.

    Returns:
        0; 1 where the server does not answer or lists nothing that fits; 2 for arguments that cannot be used.
    """
    arguments = _parser().parse_args(argv)
    try:
        return _run(arguments)
    except ConfigurationError as error:
        return _complain(str(error), 2)
    except KeyboardInterrupt:
        return 0
    except BrokenPipeError:  # the reader has seen enough; keep the interpreter from complaining at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _run(arguments: argparse.Namespace) -> int:
    if not arguments.server:
        raise ConfigurationError(f"no server: give --server HOST:PORT or set {_SERVER[0]} or {_SERVER[1]}")
    if unknown := [name for name in arguments.policy if name not in registry.names()]:
        raise ConfigurationError(f"--policy {unknown[0]}: not one of {', '.join(registry.names())}")
    tls = Tls(arguments.tls_ca, arguments.tls_cert, arguments.tls_key) if _wants_tls(arguments) else None
    with channel(arguments.server, tls=tls, tokens=_tokens(arguments.token_file)) as connection:
        stub = P2pServiceStub(connection)  # type: ignore[no-untyped-call, unused-ignore]
        return _repeat(lambda: _show(arguments, stub), arguments.watch)


def _tokens(named: str | None) -> TokenFile | None:
    """The token to send; one named on the command line must be there, one of the environment may be (as released)."""
    if named is None:
        return TokenFile(usual) if (usual := os.environ.get(_TOKEN_PATH)) else None
    try:
        with open(named, "rb"):
            return TokenFile(named)
    except OSError as error:
        raise ConfigurationError(f"--token-file {named}: {error.strerror}: name a readable file") from None


def _wants_tls(arguments: argparse.Namespace) -> bool:
    return bool(arguments.tls or arguments.tls_ca or arguments.tls_cert or arguments.tls_key)


def _repeat(show: Callable[[], int], seconds: float | None) -> int:
    if seconds is None:
        return show()
    while True:
        if sys.stdout.isatty():
            sys.stdout.write("\x1b[H\x1b[2J")
        show()
        sys.stdout.flush()
        time.sleep(seconds)


def _show(arguments: argparse.Namespace, stub: P2pServiceStub) -> int:
    try:
        rows = listing.list_model(stub, arguments.model, arguments.timeout)
    except grpc.RpcError as error:
        return _complain(f"{arguments.server} does not answer ListSources: {listing.reason(error)}", 1)
    groups = group(rows, arguments.source, arguments.rank)
    if not groups:
        model = f" of {arguments.model}" if arguments.model else ""
        return _complain(f"{arguments.server} lists no READY source{model} that fits", 1)
    return int(arguments.show(arguments, groups))


def group(
    rows: Sequence[SourceInstanceRef], source: str | None, rank: int | None
) -> list[tuple[tuple[str, str, int], list[SourceInstanceRef]]]:
    """The rows that a target would choose among, by (model, mx_source_id, worker_rank): never across identities."""
    groups: dict[tuple[str, str, int], list[SourceInstanceRef]] = {}
    for row in rows:
        if source in (None, row.mx_source_id) and rank in (None, row.worker_rank):
            groups.setdefault((row.model_name, row.mx_source_id, row.worker_rank), []).append(row)
    return sorted(groups.items())


def _show_rank(arguments: argparse.Namespace, groups: Sequence[tuple[tuple[str, str, int], list[Any]]]) -> int:
    for (model, source_id, rank), rows in groups:
        for name in arguments.policy or [settings.policy_name(os.environ)]:
            policy = registry.resolve(name)
            target = Target(model, arguments.worker_id, rank)
            standing = explanations.standings(rows, target, policy, time.time())
            reason = explanations.why(standing, policy)
            if arguments.json:
                head = {"model": model, "mx_source_id": source_id, "worker_rank": rank, "policy": policy.name}
                body = [dataclasses.asdict(s) for s in standing[: arguments.top]]
                print(json.dumps({**head, "target": arguments.worker_id, "why": reason, "sources": body}))
            else:
                title = f"{model}, rank {rank}, {source_id}: target {arguments.worker_id!r} by {policy.name}"
                _print_standings(standing[: arguments.top], title, reason)
    return 0


def _print_standings(standing: Sequence[explanations.Standing], title: str, reason: str) -> None:
    from mx_selector import tables

    _print(tables.of_standings(standing, title), f"  {tables.plain(reason)}\n")


def _show_forecast(arguments: argparse.Namespace, groups: Sequence[tuple[tuple[str, str, int], list[Any]]]) -> int:
    for (model, source_id, rank), rows in groups:
        rows.sort(key=lambda row: str(row.worker_id))
        policies = [registry.resolve(name) for name in arguments.policy or _FORECAST]
        target = Target(model, "", rank)
        results = [forecasts.forecast(rows, target, policy, arguments.targets) for policy in policies]
        if arguments.json:
            head = {"model": model, "mx_source_id": source_id, "worker_rank": rank, "targets": arguments.targets}
            ids = [row.worker_id for row in rows]
            body = [{**dataclasses.asdict(r), "pulls": dict(zip(ids, r.pulls, strict=True))} for r in results]
            print(json.dumps({**head, "policies": body}))
        else:
            from mx_selector import tables

            title = f"{model}, rank {rank}, {source_id}: first choices of the next {arguments.targets} replicas"
            _print(tables.of_forecasts(rows, results, title))
    return 0


def _print(*parts: Any) -> None:
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else 120, highlight=False)
    for part in parts:
        console.print(part)


def _complain(message: str, status: int) -> int:
    print(f"mx-select: {message}", file=sys.stderr)
    return status


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"mx-select: {message}: see {self.prog} --help\n")


def _whole(text: str, least: int) -> int:
    if not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of {least} or more")
    return int(text)


def _positive(text: str) -> int:
    return _whole(text, 1)


def _count(text: str) -> int:
    return _whole(text, 0)


def _seconds(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0.1 <= float(text) < 86_400:
            return float(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds of 0.1 or more")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="mx-select", description="What targets would choose from an MX server's READY sources at this moment."
    )
    parser.add_argument("--version", action="version", version=f"mx-select {settings.version()}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    rank = commands.add_parser("rank", help="one target's order of the sources, with the numbers behind it and why")
    rank.add_argument(
        "--worker-id", default="preview", help="whose order to show (default: a made-up one, %(default)s)"
    )
    rank.add_argument("--top", type=_positive, help="show the first so many only")
    rank.set_defaults(show=_show_rank)
    ahead = commands.add_parser("forecast", help="how the next replicas would spread over the sources, per policy")
    ahead.add_argument("--targets", type=_positive, default=16, metavar="N", help="replicas (default: %(default)s)")
    ahead.set_defaults(show=_show_forecast)
    for command in (rank, ahead):
        _common(command)
    return parser


def _common(parser: argparse.ArgumentParser) -> None:
    env = os.environ
    parser.add_argument(
        "--server",
        metavar="HOST:PORT",
        default=next((env[name] for name in _SERVER if env.get(name)), ""),
        help=f"the MX server (env: {', '.join(_SERVER)})",
    )
    parser.add_argument(
        "--model", default=env.get("MODEL_NAME", ""), help="model_name (env: MODEL_NAME; default: every model)"
    )
    parser.add_argument("--source", metavar="ID", help="one mx_source_id, where a model is served in several forms")
    parser.add_argument("--rank", type=_count, metavar="N", help="one worker_rank (default: each)")
    parser.add_argument(
        "--policy",
        action="append",
        default=[],
        metavar="NAME",
        help=f"{', '.join(registry.names())}; may be repeated (env, for rank: MX_P2P_SOURCE_SELECTOR)",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object per line instead of tables")
    parser.add_argument("--watch", type=_seconds, nargs="?", const=2.0, metavar="SECONDS", help="again every 2 seconds")
    parser.add_argument(
        "--timeout", type=_seconds, default=10.0, metavar="SECONDS", help="for one listing (%(default)s)"
    )
    parser.add_argument(
        "--token-file",
        metavar="FILE",
        help=f"bearer token, read again when it changes (env: {_TOKEN_PATH})",
    )
    parser.add_argument("--tls", action="store_true", help="TLS with the system's roots")
    parser.add_argument("--tls-ca", metavar="FILE", help="TLS with these roots")
    parser.add_argument("--tls-cert", metavar="FILE", help="client certificate, with --tls-key")
    parser.add_argument("--tls-key", metavar="FILE", help="its key")


if __name__ == "__main__":
    sys.exit(main())
