"""Channels against real gRPC servers: plain, TLS, mutual TLS, tokens that change on disk."""

from __future__ import annotations

import concurrent.futures
import os
import pathlib
import subprocess
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

import mx_wire


class Echo(mx_wire.P2pServiceServicer):
    """Answers a listing with one row that holds the caller's authorization."""

    def ListSources(self, request: mx_wire.ListSourcesRequest, context: Any) -> mx_wire.ListSourcesResponse:
        seen = dict(context.invocation_metadata()).get("authorization", "none")
        return mx_wire.ListSourcesResponse(instances=[mx_wire.SourceInstanceRef(worker_id=str(seen))])

    def PublishMetadata(self, request: Any, context: Any) -> Any:
        raise NotImplementedError

    def GetMetadata(self, request: Any, context: Any) -> Any:
        raise NotImplementedError

    def UpdateStatus(self, request: Any, context: Any) -> Any:
        raise NotImplementedError


def serve(credentials: grpc.ServerCredentials | None = None) -> tuple[grpc.Server, str]:
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(2))
    mx_wire.add_p2p_service_to_server(Echo(), server)
    if credentials is None:
        port = server.add_insecure_port("127.0.0.1:0")
    else:
        port = server.add_secure_port("127.0.0.1:0", credentials)
    server.start()
    return server, f"127.0.0.1:{port}"


@pytest.fixture
def plain() -> Iterator[str]:
    server, address = serve()
    yield address
    server.stop(None).wait()


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A self-signed certificate for `mx.test`, good as its own CA."""
    folder = tmp_path_factory.mktemp("pki")
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "key.pem", "-out", "cert.pem"]
    more = ["-days", "2", "-subj", "/CN=mx.test", "-addext", "subjectAltName=DNS:mx.test"]
    subprocess.run([*command, *more], cwd=folder, check=True, capture_output=True)
    return folder


def asked(channel: grpc.Channel) -> str:
    with channel:
        answer = mx_wire.P2pServiceStub(channel).ListSources(mx_wire.ListSourcesRequest(), timeout=5)
    return answer.instances[0].worker_id


async def aio_asked(channel: grpc.aio.Channel) -> str:
    async with channel:
        answer = await mx_wire.aio_stub(channel).ListSources(mx_wire.ListSourcesRequest(), timeout=5)
    return answer.instances[0].worker_id


async def test_without_a_token_nothing_is_sent(plain: str) -> None:
    assert asked(mx_wire.channel(plain)) == "none"
    assert await aio_asked(mx_wire.aio_channel(plain)) == "none"


async def test_a_token_goes_with_each_call(plain: str, tmp_path: pathlib.Path) -> None:
    (tmp_path / "token").write_text("first\n")
    tokens = mx_wire.TokenFile(tmp_path / "token")
    assert asked(mx_wire.channel(plain, tokens=tokens)) == "Bearer first"
    assert await aio_asked(mx_wire.aio_channel(plain, tokens=tokens)) == "Bearer first"


async def test_tls_verifies_with_the_ca_and_the_name(pki: pathlib.Path) -> None:
    pair = ((pki / "key.pem").read_bytes(), (pki / "cert.pem").read_bytes())
    server, address = serve(grpc.ssl_server_credentials([pair]))
    tls = mx_wire.Tls(ca_file=pki / "cert.pem", server_name="mx.test")
    assert asked(mx_wire.channel(address, tls=tls)) == "none"
    assert await aio_asked(mx_wire.aio_channel(address, tls=tls)) == "none"
    with pytest.raises(grpc.RpcError) as refused:
        asked(mx_wire.channel(address, tls=mx_wire.Tls(server_name="mx.test")))
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    server.stop(None).wait()


def test_mutual_tls_presents_our_certificate(pki: pathlib.Path) -> None:
    key, cert = (pki / "key.pem").read_bytes(), (pki / "cert.pem").read_bytes()
    server, address = serve(grpc.ssl_server_credentials([(key, cert)], cert, require_client_auth=True))
    ours = mx_wire.Tls(pki / "cert.pem", pki / "cert.pem", pki / "key.pem", "mx.test")
    assert asked(mx_wire.channel(address, tls=ours)) == "none"
    with pytest.raises(grpc.RpcError):
        asked(mx_wire.channel(address, tls=mx_wire.Tls(pki / "cert.pem", server_name="mx.test")))
    server.stop(None).wait()


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_replaced_token_is_seen_at_once_and_an_unreadable_one_keeps_the_last(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "token"
    tokens = mx_wire.TokenFile(file, Clock())
    assert tokens.metadata() == ()
    file.write_text("one")
    assert tokens.token() == "one"
    replacement = tmp_path / "next"
    replacement.write_text("two")
    replacement.rename(file)
    assert tokens.metadata() == (("authorization", "Bearer two"),)
    file.write_bytes(b"\xff\xfe")
    assert tokens.token() == "two"  # what is no text is no token
    file.unlink()
    assert tokens.token() == "two"


def test_a_token_changed_without_a_trace_is_read_again_after_a_minute(tmp_path: pathlib.Path) -> None:
    file, clock = tmp_path / "token", Clock()
    file.write_text("one")
    stat = file.stat()
    tokens = mx_wire.TokenFile(file, clock)
    assert tokens.token() == "one"
    file.write_text("two")
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert tokens.token() == "one"
    clock.now = 60.0
    assert tokens.token() == "two"


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("http://mx:8001", "'http://mx:8001': give host:port, without a scheme"),
        ("mx", "'mx': give host:port, such as"),
        ("mx:", "'mx:': give host:port"),
        (":8001", "':8001': give host:port"),
        ("mx:65536", "'mx:65536': give host:port"),
    ],
)
def test_an_address_that_cannot_work_is_refused_with_the_fix(address: str, said: str) -> None:
    with pytest.raises(mx_wire.ConfigurationError, match=said):
        mx_wire.channel(address)
    with pytest.raises(mx_wire.ConfigurationError, match=said):
        mx_wire.aio_channel(address)


def test_half_a_client_certificate_and_a_missing_file_are_named(tmp_path: pathlib.Path) -> None:
    with pytest.raises(mx_wire.ConfigurationError, match="needs both cert_file and key_file"):
        mx_wire.Tls(cert_file="x")
    with pytest.raises(mx_wire.ConfigurationError, match=r"TLS: ca_file .*nowhere.pem: No such file"):
        mx_wire.channel("mx:8001", tls=mx_wire.Tls(ca_file=tmp_path / "nowhere.pem"))
