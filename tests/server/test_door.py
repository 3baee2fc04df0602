"""The door `mx-server`: what it says, how it ends, and which configurations it refuses in one line."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import pathlib
import re
import signal
import socket
import sys
from collections.abc import Iterator

import pytest
import yaml

from mx_lab.processes import Process, free_port
from mx_server import arguments, cli
from mx_server import environment as variables
from mx_server.settings import BadSetting, Kubernetes, Security, ServerTls, Settings, host_port
from mx_wire import aio_channel, aio_stub
from tests.server.conftest import Peer

ACCOUNTS = "MODEL_EXPRESS_SECURITY_ALLOWED_SERVICE_ACCOUNTS"
AUDIENCES = "MODEL_EXPRESS_SECURITY_TOKEN_AUDIENCES"
MODE = "MODEL_EXPRESS_SECURITY_MODE"
MX_SERVER = pathlib.Path(sys.executable).with_name("mx-server")


@pytest.fixture
def started(tmp_path: pathlib.Path) -> Iterator[Process]:
    command = [str(MX_SERVER), "--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0", "--drop-load"]
    process = Process("mx-server", command, tmp_path / "log")
    process.wait_ready(lambda: "listening" in process.output)
    yield process
    process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_the_door_says_where_it_listens_and_ends_on_a_signal(started: Process, number: signal.Signals) -> None:
    line = re.search(r"mx-server: listening on (127\.0\.0\.1:\d+) \((.*)\)", started.output)
    assert line is not None
    assert line[2].startswith("backend memory, dialect both, load dropped, metrics http://127.0.0.1:")
    async with aio_channel(line[1]) as channel:
        peer = Peer(aio_stub(channel))
        await peer.ready("w1", load=0.5)
        assert await peer.loads() == {"w1": None}
    os.kill(started.pid, number)
    assert await asyncio.to_thread(started.wait, 5) == 0
    assert "stopping" in started.output


@pytest.mark.parametrize(
    ("argv", "environment", "said"),
    [
        (["--backend", "redis"], {}, "--redis-url"),
        (["--backend", "sqlite"], {}, "--backend 'sqlite': give memory, redis or kubernetes"),
        ([], {"MX_METADATA_BACKEND": "kubernetes"}, "--namespace"),
        (["--backend", "k8s", "--namespace", "n"], {}, "--kube-api-server"),
        (["--backend", "k8s", "--namespace", "n", "--kube-api-server", "h:1"], {}, "give a URL"),
        (["--listen", "8001"], {}, "--listen '8001'"),
        (["--listen", "127.0.0.1:0", "--metrics-listen", "x"], {}, "--metrics-listen 'x'"),
        ([], {"MX_HEARTBEAT_TIMEOUT_SECS": "soon"}, "MX_HEARTBEAT_TIMEOUT_SECS"),
        (["--heartbeat-timeout", "0"], {}, "--heartbeat-timeout 0"),
        (["--reaper-interval", "nan"], {}, "--reaper-interval nan"),
        (["--gc-timeout", "10"], {}, "--gc-timeout 10"),
        (["--grace", "-1"], {}, "--grace -1"),
        (["--max-message-bytes", "7"], {}, "--max-message-bytes 7"),
        (["--dialect", "klingon"], {}, "--dialect"),
        (["--tls-cert", "x"], {}, "--tls-key"),
        (["--tls-client-ca", "x"], {}, "--tls-cert"),
        (["--tls-cert", "x", "--tls-key", "y"], {}, "No such file"),
        (["--security-mode", "maybe"], {}, "off or enforce"),
        (["--security-mode", "enforce"], {}, "--token-audiences"),
        (["--security-mode", "enforce", "--token-audiences", "a"], {}, "--allowed-service-accounts"),
        (
            ["--security-mode", "enforce", "--token-audiences", "a", "--allowed-service-accounts", "x"],
            {},
            "namespace:name",
        ),
        (["--log-level", "shout"], {}, "--log-level"),
        (["--max-message-bytes", "99999999999"], {}, "--max-message-bytes 99999999999: give 1024 to 2147483647"),
        (["--tls-cert", "/none.crt", "--tls-key", "/none.key"], {}, "/none.crt: No such file"),
        (["--tls-cert", __file__, "--tls-key", __file__], {}, "no certificate with its key"),
        (["--backend", "redis", "--redis-url", "redis://r?colour=red"], {}, "--redis-url: unknown parameter 'colour'"),
        (["--backend", "redis", "--redis-url", "redis://[::1"], {}, "--redis-url: Invalid IPv6 URL"),
        (["--backend", "redis", "--redis-url", "redis://r/main"], {}, "--redis-url: 'main' is no database number"),
        (
            ["--backend", "redis"],
            {"REDIS_HOST": "redis", "REDIS_PORT": "tcp://10.0.0.1:6379"},
            "REDIS_PORT 'tcp://10.0.0.1:6379': give a port number (Kubernetes sets it for a Service of that name",
        ),
        (["--listen", "::1:8001"], {}, "--listen '::1:8001': put an IPv6 address in brackets"),
        (
            ["--security-mode", "enforce", "--token-audiences", "a", "--allowed-service-accounts", "x:y"],
            {"MODEL_EXPRESS_SECURITY_CACHE_TTL_SECS": "nan"},
            "MODEL_EXPRESS_SECURITY_CACHE_TTL_SECS nan: give a number of seconds, 0 or more",
        ),
        (["--no-such-thing"], {}, "--no-such-thing"),
        (["--grace", "soon"], {}, "--grace 'soon' is no number: give seconds"),
        (["--max-message-bytes", "1.5"], {}, "--max-message-bytes '1.5' is no number: give a whole number"),
        # What came from the environment is named as it is there.
        ([], {"MX_METADATA_BACKEND": "rediss"}, "mx-server: MX_METADATA_BACKEND 'rediss': give memory, redis or"),
        ([], {"MX_METADATA_BACKEND": "redis"}, "mx-server: MX_METADATA_BACKEND redis needs --redis-url"),
        (["--backend", "rediss"], {"MX_METADATA_BACKEND": "redis"}, "mx-server: --backend 'rediss'"),
        ([], {"MODEL_EXPRESS_SERVER_PORT": "abc"}, "mx-server: MODEL_EXPRESS_SERVER_PORT 'abc': give a port number"),
        ([], {"MODEL_EXPRESS_SERVER_HOST": "192.0.2.1"}, "mx-server: MODEL_EXPRESS_SERVER_HOST 192.0.2.1:8001: cannot"),
        ([], {"MODEL_EXPRESS_SECURITY_MODE": "enfroce"}, "mx-server: MODEL_EXPRESS_SECURITY_MODE 'enfroce': give off"),
        ([], {"MODEL_EXPRESS_LOG_LEVEL": "shout"}, "mx-server: MODEL_EXPRESS_LOG_LEVEL 'shout': give debug"),
        ([], {"MX_GC_TIMEOUT_SECS": "5"}, "mx-server: MX_GC_TIMEOUT_SECS 5 is shorter than --heartbeat-timeout 90"),
        ([], {"MX_METADATA_BACKEND": "redis", "REDIS_URL": "redis://r/main"}, "mx-server: REDIS_URL: 'main' is no"),
        # What would be passed over is refused, where it was meant for this server.
        (["--redis-url", "redis://r"], {}, "--redis-url does nothing without --backend redis: add that, or leave"),
        (["--redis-prefix", "x"], {"REDIS_URL": "redis://r"}, "--redis-prefix does nothing without --backend redis"),
        (["--namespace", "mx"], {}, "--namespace does nothing without --backend kubernetes"),
        (["--kube-ca-file", "x"], {}, "without --backend kubernetes or --security-mode enforce"),
        (["--token-audiences", "a"], {}, "--token-audiences does nothing without --security-mode enforce"),
        (["--allowed-service-accounts", "x"], {MODE: "off"}, "--allowed-service-accounts does nothing without"),
        (["--token-cache-ttl", "5"], {}, "--token-cache-ttl does nothing without --security-mode enforce"),
        ([], {ACCOUNTS: "x:y"}, f"mx-server: {ACCOUNTS} is set and no security mode: set {MODE} to enforce, or to off"),
        ([], {MODE: "enforce", AUDIENCES: "a", ACCOUNTS: "x:y z"}, f"mx-server: {ACCOUNTS} 'x:y z': give namespace"),
    ],
)
def test_a_configuration_that_cannot_work_is_one_line_and_status_2(
    argv: list[str],
    environment: dict[str, str],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    own = "--listen" in argv or any(name.startswith("MODEL_EXPRESS_SERVER") for name in environment)
    listen = [] if own else ["--listen", "127.0.0.1:0"]
    assert cli.main([*argv, *listen]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("mx-server: ")
    assert said in line


def made(argv: list[str], environment: dict[str, str]) -> Settings:
    """The settings of a command line in an environment."""
    return arguments.settings(variables.given(arguments.parser().parse_args(argv), environment))


@pytest.mark.parametrize(
    "environment",
    [
        {"REDIS_URL": "redis://r", "MX_REDIS_HOST": "r", "MX_METADATA_NAMESPACE": "mx", "POD_NAMESPACE": "mx"},
        {MODE: "off", ACCOUNTS: "whoever", AUDIENCES: "a", "MODEL_EXPRESS_SECURITY_CACHE_TTL_SECS": "5"},
        {"MODEL_EXPRESS_SECURITY_CACHE_TTL_SECS": "5"},
        {ACCOUNTS: "", AUDIENCES: ""},
    ],
)
def test_variables_that_a_deployment_shares_are_no_mistake(environment: dict[str, str]) -> None:
    assert made([], environment) == dataclasses.replace(Settings(), kubernetes=made([], environment).kubernetes)


@pytest.mark.parametrize(
    ("argv", "listen"),
    [([":0"], ("[::]", "0.0.0.0")), (["0.0.0.0:0"], ("0.0.0.0",)), (["[::1]:0"], ("[::1]",))],
)
def test_a_port_alone_is_every_address(argv: list[str], listen: tuple[str, ...]) -> None:
    host, port = host_port("--listen", argv[0], "0.0.0.0:8001")
    assert (host in listen, port) == (True, 0)


def test_the_help_names_every_variable_and_says_that_not_every_option_has_one() -> None:
    text = " ".join(arguments.parser().format_help().split())
    names = [name for table in (variables.VARIABLES, variables.COMPOSED) for row in table.values() for name in row]
    assert [name for name in names if name not in text] == []
    assert "The others are options only" in text


def test_a_port_from_a_service_link_is_named_with_its_variable() -> None:
    """Kubernetes sets MODEL_EXPRESS_SERVER_PORT for a Service named model-express-server."""
    environment = {"MODEL_EXPRESS_SERVER_PORT": "tcp://10.0.0.1:8001"}
    with pytest.raises(BadSetting, match=r"MODEL_EXPRESS_SERVER_PORT 'tcp://10.0.0.1:8001': give a port number"):
        made([], environment)
    assert made(["--listen", "127.0.0.1:1"], environment).listen == "127.0.0.1:1"


def test_a_service_named_redis_is_nothing_to_another_backend() -> None:
    environment = {"REDIS_HOST": "redis", "REDIS_PORT": "tcp://10.0.0.1:6379"}
    assert made([], environment).backend == "memory"


@pytest.mark.parametrize(
    ("environment", "listen"),
    [
        ({"MODEL_EXPRESS_SERVER_PORT": ""}, "127.0.0.1:8001"),
        ({"MODEL_EXPRESS_SERVER_HOST": "", "MODEL_EXPRESS_SERVER_PORT": "9"}, "127.0.0.1:9"),
        ({"MODEL_EXPRESS_SERVER_HOST": "::"}, "[::]:8001"),
        ({"MODEL_EXPRESS_SERVER_HOST": "[::1]"}, "[::1]:8001"),
    ],
)
def test_the_address_from_the_environment(environment: dict[str, str], listen: str) -> None:
    assert made([], environment).listen == listen


OPEN = Settings(listen="0.0.0.0:8001")
SECURE = Security(("a",), frozenset({"x:y"}))
PAIR = ServerTls(pathlib.Path("c"), pathlib.Path("k"))


@pytest.mark.parametrize(
    ("settings", "warned"),
    [
        (OPEN, True),
        (dataclasses.replace(OPEN, listen="[::]:8001"), True),
        (dataclasses.replace(OPEN, listen="192.0.2.7:8001"), True),
        (dataclasses.replace(OPEN, tls=PAIR), True),
        (dataclasses.replace(OPEN, tls=dataclasses.replace(PAIR, client_ca_file=pathlib.Path("ca"))), False),
        (dataclasses.replace(OPEN, security=SECURE), False),
        (dataclasses.replace(OPEN, listen="127.0.0.1:8001"), False),
        (dataclasses.replace(OPEN, listen="127.9.9.9:8001"), False),
        (dataclasses.replace(OPEN, listen="[::1]:8001"), False),
        (dataclasses.replace(OPEN, listen="localhost:8001"), False),
    ],
)
def test_who_listens_for_everybody_is_warned(settings: Settings, warned: bool) -> None:
    assert (cli.exposed(settings) is not None) is warned


async def test_the_warning_is_one_line_at_the_start(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a stand-in for the server: tests listen on loopback only."""

    class Listening:
        def __init__(self, settings: Settings) -> None:
            self.settings, self.address, self.metrics_address = settings, settings.listen, None

        async def __aenter__(self) -> Listening:
            asyncio.get_running_loop().call_later(0.05, os.kill, os.getpid(), signal.SIGTERM)
            return self

        async def __aexit__(self, *_: object) -> None:
            pass

    monkeypatch.setattr(cli, "Server", Listening)
    assert await cli.serve(OPEN) == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert line == (
        "mx-server: warning: 0.0.0.0:8001 is open to whoever reaches it: any caller can register sources and set loads;"
        " use --security-mode enforce, --tls-client-ca or a network policy, or listen on 127.0.0.1"
    )
    assert await cli.serve(Settings(listen="127.0.0.1:8001")) == 0
    assert capsys.readouterr().err == ""


def test_a_port_that_is_taken_is_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert cli.main(["--listen", f"127.0.0.1:{taken.getsockname()[1]}"]) == 2
        assert capfd.readouterr().err.count("\n") == 1
        arguments = ["--listen", "127.0.0.1:0", "--metrics-listen", f"127.0.0.1:{taken.getsockname()[1]}"]
        assert cli.main(arguments) == 2
        assert "--metrics-listen" in capfd.readouterr().err


def test_a_backend_that_does_not_answer_is_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["--listen", "127.0.0.1:0", "--backend", "redis", "--redis-url", f"redis://127.0.0.1:{free_port()}"]
    assert cli.main(argv) == 1
    assert capsys.readouterr().err.startswith("mx-server: redis backend: ")


def test_arguments_win_over_the_environment_and_names_are_the_upstream_servers() -> None:
    environment = {
        "MODEL_EXPRESS_SERVER_HOST": "0.0.0.0",
        "MODEL_EXPRESS_SERVER_PORT": "9001",
        "MX_METADATA_BACKEND": "CRD",
        "MX_REDIS_HOST": "r",
        "MX_REDIS_PORT": "7",
        "MX_METADATA_NAMESPACE": "mx",
        "MX_HEARTBEAT_TIMEOUT_SECS": "30",
        "MX_REAPER_SCAN_INTERVAL_SECS": "5",
        "MX_GC_TIMEOUT_SECS": "60",
        "MODEL_EXPRESS_SECURITY_MODE": "enforce",
        "MODEL_EXPRESS_SECURITY_TOKEN_AUDIENCES": "a, b",
        "MODEL_EXPRESS_SECURITY_ALLOWED_SERVICE_ACCOUNTS": "x:y,z:w",
        "MODEL_EXPRESS_SECURITY_CACHE_TTL_SECS": "5",
    }
    assert made([], environment) == Settings(
        listen="0.0.0.0:9001",
        backend="kubernetes",
        kubernetes=Kubernetes("mx"),
        heartbeat_timeout=30,
        reaper_interval=5,
        gc_timeout=60,
        security=Security(("a", "b"), frozenset({"x:y", "z:w"}), 5),
    )
    assert made(["--backend=redis"], environment).redis_url == "redis://r:7"
    argv = ["--backend", "memory", "--heartbeat-timeout", "0.5", "--security-mode", "off", "--listen", "[::1]:1"]
    other = made(argv, environment)
    assert (other.backend, other.heartbeat_timeout, other.security, other.listen) == ("memory", 0.5, None, "[::1]:1")


def test_the_crd_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--print-crd"]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["metadata"]["name"] == "modelmetadatas.modelexpress.nvidia.com"
