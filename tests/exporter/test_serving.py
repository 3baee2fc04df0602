"""Our HTTP server as its clients meet it: real sockets, logins, certificates, probes."""

from __future__ import annotations

import base64
import concurrent.futures
import contextlib
import dataclasses
import gzip
import http.client
import os
import pathlib
import socket
import ssl
import subprocess
from collections.abc import Iterator, Mapping

import pytest
from opentelemetry.sdk.resources import Resource

from mx_exporter.access import AuthSettings, Certificates, Gate, TlsSettings
from mx_exporter.errors import ConfigurationError
from mx_exporter.exposition import Pages
from mx_exporter.serving import Server
from mx_exporter.snapshot import Present
from mx_exporter.visitors import Patience
from tests.exporter.looking import START, Clock, Looking
from tests.exporter.trees import nodes


@dataclasses.dataclass
class Running:
    """A running server and how to ask it."""

    port: int
    present: Present
    clock: Clock
    looking: Looking
    server: Server
    context: ssl.SSLContext | None = None

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> tuple[int, http.client.HTTPMessage, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        if self.context:
            connection = http.client.HTTPSConnection("127.0.0.1", self.port, timeout=5, context=self.context)
        with contextlib.closing(connection):
            connection.request("GET", path, headers=dict(headers or {}))
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()


@contextlib.contextmanager
def serving(
    tmp_path: pathlib.Path,
    auth: AuthSettings | None = None,
    tls: TlsSettings | None = None,
    patience: Patience | None = None,
) -> Iterator[Running]:
    looking = Looking(nodes.eight_rails(tmp_path / "node"))
    present = Present(5.0, looking.clock)
    certificates = Certificates.of(tls or TlsSettings())
    pages = Pages(Resource({"service.name": "mx-exporter"}), START)
    server = Server("127.0.0.1", 0, pages, present, Gate(auth or AuthSettings()), certificates, patience)
    try:
        _, port = server.start()
        yield Running(port, present, looking.clock, looking, server)
    finally:
        server.stop()


def test_the_page_comes_plain_or_compressed_and_is_the_same(tmp_path: pathlib.Path) -> None:
    with serving(tmp_path) as running:
        assert running.get("/metrics")[0] == 503
        running.present.put(running.looking.tick())
        status, headers, body = running.get("/metrics")
        assert (status, headers["Content-Type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
        assert b"hw_network_up" in body
        _, headers, packed = running.get("/metrics", {"Accept-Encoding": "gzip"})
        assert headers["Content-Encoding"] == "gzip"
        assert gzip.decompress(packed) == body
        _, headers, body = running.get("/metrics", {"Accept": "application/openmetrics-text;version=1.0.0"})
        assert headers["Content-Type"].startswith("application/openmetrics-text")
        for refused in ("gzip;q=0", "gzip; q=0.0", "br", "identity", ""):
            assert running.get("/metrics", {"Accept-Encoding": refused})[1]["Content-Encoding"] is None, refused
        assert running.get("/metrics", {"Accept-Encoding": "br, GZIP;q=0.5"})[1]["Content-Encoding"] == "gzip"
        assert running.get("/nothing")[0] == 404
        assert running.get("/")[0] == 200


def test_probes_follow_the_sampling(tmp_path: pathlib.Path) -> None:
    with serving(tmp_path) as running:
        assert [running.get(path)[0] for path in ("/healthz", "/readyz")] == [503, 503]
        snapshot = running.looking.tick()
        running.present.put(dataclasses.replace(snapshot, discovery_age=None))
        assert [running.get(path)[0] for path in ("/healthz", "/readyz")] == [200, 503]
        running.present.put(snapshot)
        assert [running.get(path)[0] for path in ("/healthz", "/readyz")] == [200, 200]
        running.clock.now += 6
        assert running.get("/healthz")[::2] == (503, b"last sample 6.0 s ago\n")
        assert running.get("/readyz")[0] == 200  # not sampling is for a restart, not for being left out
        assert b"sampler_stalled" not in running.get("/metrics")[2]  # there is no source to say it of
        assert b"hw_network_up" not in running.get("/metrics")[2]


def basic(login: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(login.encode()).decode()}


def test_either_login_opens_the_page_and_nothing_else_does(tmp_path: pathlib.Path) -> None:
    users, token = tmp_path / "users", tmp_path / "token"
    users.write_text("prom:s3cret\nother:pässword\n")
    token.write_text("t0ken\n")
    with serving(tmp_path, AuthSettings(users, token)) as running:
        running.present.put(running.looking.tick())
        for headers in (basic("prom:s3cret"), basic("other:pässword"), {"Authorization": "Bearer t0ken"}):
            assert running.get("/metrics", headers)[0] == 200
        wrong: list[dict[str, str]] = [
            {},
            basic("prom:wrong"),
            basic("prom:"),
            basic(""),
            {"Authorization": "Bearer t0ken2"},
            {"Authorization": "Bearer "},
            {"Authorization": "Basic not-base64!"},
            {"Authorization": "Basic t0ken"},
            {"Authorization": "Bearer prom:s3cret"},
        ]
        for headers in wrong:
            status, answered, _ = running.get("/metrics", headers)
            assert (status, answered["WWW-Authenticate"]) == (401, 'Basic realm="mx-exporter", Bearer'), headers
        assert running.get("/healthz")[0] == 200  # the kubelet has no login


def test_a_login_that_is_no_text_is_wrong_like_any_other(tmp_path: pathlib.Path) -> None:
    users, token = tmp_path / "users", tmp_path / "token"
    users.write_text("prom:t0ken")
    token.write_text("t0ken")
    with serving(tmp_path, AuthSettings(users, token)) as running:
        running.present.put(running.looking.tick())
        for kind in (b"Bearer ", b"Basic ", b""):
            with socket.create_connection(("127.0.0.1", running.port), 5) as client:
                client.sendall(
                    b"GET /metrics HTTP/1.1\r\nHost: a\r\nAuthorization: " + kind + b"\xff\xed\xa0\x80\r\n\r\n"
                )
                assert client.recv(100).split(b"\r\n")[0] == b"HTTP/1.1 401 Unauthorized"


def test_a_rotated_login_counts_at_once_and_a_lost_one_opens_nothing(tmp_path: pathlib.Path) -> None:
    token = tmp_path / "token"
    token.write_text("old")
    gate = Gate(AuthSettings(bearer_token_file=token))
    assert gate.allows("Bearer old")
    token.write_text("newer")
    assert [gate.allows(f"Bearer {text}") for text in ("old", "newer")] == [False, True]
    token.unlink()
    assert [gate.allows(f"Bearer {text}") for text in ("old", "newer", "")] == [False, False, False]
    token.write_text("back")
    assert gate.allows("bearer back")


def test_an_empty_or_missing_login_is_said_at_start(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ConfigurationError, match="name a token that can be read"):
        Gate(AuthSettings(bearer_token_file=tmp_path / "none"))
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(ConfigurationError, match="empty: put the login in"):
        Gate(AuthSettings(basic_file=tmp_path / "empty"))


@pytest.mark.parametrize("line", ["s3cret", ":s3cret", "prom:", "prom s3cret"])
def test_a_line_that_is_no_login_is_named_at_start_and_its_words_are_not(line: str, tmp_path: pathlib.Path) -> None:
    users = tmp_path / "users"
    users.write_text(f"prom:pass\n\n{line}\n")
    with pytest.raises(ConfigurationError) as raised:
        Gate(AuthSettings(basic_file=users))
    assert str(raised.value) == f"{users}: line 3: no user and password: write USER:PASSWORD, one login a line"


def test_a_login_that_an_editor_marked_as_utf_8_counts(tmp_path: pathlib.Path) -> None:
    (tmp_path / "users").write_text("prom:pass\r\n", "utf-8-sig")
    assert Gate(AuthSettings(basic_file=tmp_path / "users")).allows(basic("prom:pass")["Authorization"])


def test_logins_that_break_under_way_open_nothing_and_say_so_once(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    users, login = tmp_path / "users", basic("prom:pass")["Authorization"]
    users.write_text("prom:pass\n")
    gate = Gate(AuthSettings(basic_file=users))
    users.write_text("prom:pass\nbroken\n")
    assert [gate.allows(login) for _ in range(3)] == [False, False, False]
    assert [line for line in caplog.messages if "line 2: no user and password" in line] == caplog.messages
    assert len(caplog.messages) == 1
    users.unlink()
    assert [gate.allows(login) for _ in range(3)] == [False, False, False]
    assert len(caplog.messages) == 2
    users.write_text("prom:pass\n")
    assert gate.allows(login)
    assert "opens /metrics again" in caplog.messages[-1]


def certificate(folder: pathlib.Path, name: str) -> tuple[pathlib.Path, pathlib.Path]:
    """A self-signed certificate for 127.0.0.1 and its key."""
    cert, key = folder / f"{name}.crt", folder / f"{name}.key"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", cert],
        check=True, capture_output=True,
    )  # fmt: skip
    return cert, key


def test_tls_with_a_certificate_that_is_rotated(tmp_path: pathlib.Path) -> None:
    cert, key = certificate(tmp_path, "first")
    settings = TlsSettings(cert, key)
    certificates = Certificates.of(settings)
    assert certificates is not None
    with serving(tmp_path, tls=settings) as running:
        running.present.put(running.looking.tick())
        running.context = ssl.create_default_context(cafile=str(cert))
        assert running.get("/metrics")[0] == 200
        running.context = ssl.create_default_context()
        with pytest.raises(ssl.SSLCertVerificationError):
            running.get("/metrics")
    before = certificates.context
    other_cert, other_key = certificate(tmp_path, "second")
    os.replace(other_cert, cert)
    certificates.refresh()  # the key does not fit yet: the old pair goes on
    os.replace(other_key, key)
    certificates.refresh()
    assert certificates.context is before
    assert certificates._stamp == certificates._stamped()


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_half_a_rotation_leaves_the_old_pair_in_use(tmp_path: pathlib.Path, version: ssl.TLSVersion) -> None:
    """Two files are never replaced in one moment; nor is one that is broken ever used."""
    cert, key = certificate(tmp_path, "first")
    other_cert, other_key = certificate(tmp_path, "second")
    old, new = ssl.create_default_context(cafile=str(cert)), ssl.create_default_context(cafile=str(other_cert))
    old.maximum_version = new.maximum_version = version
    with serving(tmp_path, tls=TlsSettings(cert, key)) as running:
        running.present.put(running.looking.tick())
        certificates = running.server._certificates
        assert certificates is not None
        for trusted, replaced, by in ((old, cert, other_cert.read_bytes()), (old, cert, b"broken"),
                                      (old, key, other_key.read_bytes()), (new, cert, other_cert.read_bytes()),
                                      (new, key, b"broken")):  # fmt: skip
            replaced.write_bytes(by)
            certificates.refresh()
            running.context = trusted
            assert running.get("/metrics")[0] == 200, (replaced.name, by[:30])


def test_certificates_that_vanish_while_looked_at_end_nothing(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rotation replaces files under us: there when asked for, gone when looked at."""
    cert, key = certificate(tmp_path, "server")
    certificates = Certificates.of(TlsSettings(cert, key))
    assert certificates is not None
    cert.unlink()
    monkeypatch.setattr(pathlib.Path, "exists", lambda _: True)
    certificates.refresh()


def test_head_and_other_methods(tmp_path: pathlib.Path) -> None:
    with serving(tmp_path) as running:
        running.present.put(running.looking.tick())
        length = len(running.get("/metrics")[2])
        for method, path, status in (
            ("HEAD", "/metrics", 200), ("HEAD", "/nothing", 404), ("POST", "/metrics", 405), ("OPTIONS", "*", 404),
            ("GET", "/metrics/", 404), ("GET", "/metrics?name[]=a", 200), ("GET", "//metrics", 404),
            ("GET", "/%2e%2e", 404),
        ):  # fmt: skip
            connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=5)
            with contextlib.closing(connection):
                connection.request(method, path)
                answer = connection.getresponse()
                assert answer.status == status, (method, path)
                if method == "HEAD" and status == 200:
                    assert (int(answer.headers["Content-Length"]), answer.read()) == (length, b"")


def test_clients_can_be_asked_for_certificates(tmp_path: pathlib.Path) -> None:
    cert, key = certificate(tmp_path, "server")
    client, client_key = certificate(tmp_path, "client")
    with serving(tmp_path, tls=TlsSettings(cert, key, client)) as running:
        running.present.put(running.looking.tick())
        running.context = ssl.create_default_context(cafile=str(cert))
        with pytest.raises((ssl.SSLError, ConnectionError, http.client.RemoteDisconnected)):
            running.get("/metrics")
        running.context.load_cert_chain(client, client_key)
        assert running.get("/metrics")[0] == 200


def test_clients_of_a_ca_that_was_replaced_are_strangers(tmp_path: pathlib.Path) -> None:
    cert, key = certificate(tmp_path, "server")
    pairs = [certificate(tmp_path, name) for name in ("old", "new")]
    clients = tmp_path / "ca.crt"
    clients.write_bytes(pairs[0][0].read_bytes())
    with serving(tmp_path, tls=TlsSettings(cert, key, clients)) as running:
        running.present.put(running.looking.tick())
        certificates = running.server._certificates
        assert certificates is not None
        opened = []
        for trusted in (0, 1):
            clients.write_bytes(pairs[trusted][0].read_bytes())
            certificates.refresh()
            for pair in pairs:
                running.context = ssl.create_default_context(cafile=str(cert))
                running.context.load_cert_chain(*pair)
                opened.append(_opens(running))
        assert opened == [True, False, False, True]


def _opens(running: Running) -> bool:
    try:
        return running.get("/metrics")[0] == 200
    except (ssl.SSLError, ConnectionError, http.client.RemoteDisconnected):
        return False


def test_half_a_pair_or_no_certificate_is_said_at_start(tmp_path: pathlib.Path) -> None:
    cert, key = certificate(tmp_path, "server")
    with pytest.raises(ConfigurationError, match="tls needs both certFile and keyFile"):
        Certificates.of(TlsSettings(cert))
    with pytest.raises(ConfigurationError, match=r"needs tls\.certFile"):
        Certificates.of(TlsSettings(client_ca_file=cert))
    with pytest.raises(ConfigurationError, match="give a PEM certificate and its key"):
        Certificates.of(TlsSettings(key, key))
    with pytest.raises(ConfigurationError, match="No such file"):
        Certificates.of(TlsSettings(cert, tmp_path / "none"))
    for clients in (key, tmp_path / "none"):
        with pytest.raises(ConfigurationError, match=rf"^tls: {clients}: .*: give a PEM file of CA certificates"):
            Certificates.of(TlsSettings(cert, key, clients))


def test_a_port_that_is_taken_is_said(tmp_path: pathlib.Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        server = Server("127.0.0.1", port, Pages(Resource({})), Present(5.0), Gate(AuthSettings()))
        with pytest.raises(ConfigurationError, match=rf"--listen 127.0.0.1:{port}: .*: choose another"):
            server.start()
        server.stop()


@pytest.mark.parametrize("host", ["a..b", "x" * 64, "not a name"])
def test_a_host_that_is_none_is_said(host: str) -> None:
    server = Server(host, 0, Pages(Resource({})), Present(5.0), Gate(AuthSettings()))
    with pytest.raises(ConfigurationError, match=rf"--listen {host}:0: .*: choose another"):
        server.start()
    server.stop()


@pytest.mark.parametrize(
    ("host", "reached"),
    [
        ("127.0.0.1", {"127.0.0.1"}),
        ("0.0.0.0", {"127.0.0.1"}),
        ("::1", {"::1"}),
        ("::", {"127.0.0.1", "::1"}),
        ("", {"127.0.0.1", "::1"}),
    ],
)  # fmt: skip
def test_listens_where_it_is_told_to(host: str, reached: set[str]) -> None:
    """All addresses are those of both families, as with every other exporter: a cluster may have either or both."""
    if not socket.has_dualstack_ipv6():
        pytest.skip("no IPv6 here")
    server = Server(host, 0, Pages(Resource({})), Present(5.0), Gate(AuthSettings()))
    _, port = server.start()
    try:
        assert {address for address in ("127.0.0.1", "::1") if _answers(address, port)} == reached
    finally:
        server.stop()


def test_without_ipv6_all_addresses_are_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)
    server = Server("", 0, Pages(Resource({})), Present(5.0), Gate(AuthSettings()))
    address, port = server.start()
    try:
        assert (address, _answers("127.0.0.1", port)) == ("0.0.0.0", True)
    finally:
        server.stop()


def _answers(address: str, port: int) -> bool:
    try:
        with socket.create_connection((address, port), 5):
            return True
    except ConnectionRefusedError:
        return False


def test_garbage_does_not_fill_the_log(tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
    """Whoever can connect could otherwise write a traceback with each line; our own mistakes are still told."""
    garbage = (
        b"\x16\x03\x01 garbage\r\n\r\n", b"GET / HTTP/9.9x\r\n\r\n", b"GET / HTTP/1.1\r\nA\r\n\r\n",
        b"GET / HTTP/1.1\r\nA: " + b"x" * 10_000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nno chunk\r\n",
        b"GET / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
    )  # fmt: skip
    with serving(tmp_path) as running:
        for sent in garbage:
            with socket.create_connection(("127.0.0.1", running.port), 5) as rude:
                rude.sendall(sent)
                assert rude.recv(100).startswith(b"HTTP/1."), sent
        assert [record.getMessage() for record in caplog.records] == []
        running.present.put("no snapshot")  # type: ignore[arg-type]
        assert running.get("/metrics")[0] == 500
        assert len(caplog.records) == 1


def test_readers_at_the_same_time_read_the_same(tmp_path: pathlib.Path) -> None:
    with serving(tmp_path) as running:
        running.present.put(running.looking.tick())
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            assert len(set(pool.map(lambda _: running.get("/metrics")[2], range(64)))) == 1


def test_a_client_that_sends_nothing_harms_nobody(tmp_path: pathlib.Path) -> None:
    with serving(tmp_path) as running, contextlib.ExitStack() as stack:
        running.present.put(running.looking.tick())
        for _ in range(50):
            idle = stack.enter_context(socket.create_connection(("127.0.0.1", running.port)))
            idle.sendall(b"GET /metrics HTTP/1.1\r\nX-Endless: ")
        assert running.get("/metrics")[0] == 200
        with socket.create_connection(("127.0.0.1", running.port)) as rude:
            rude.sendall(b"\x16\x03\x01 garbage\r\n\r\n")
            assert rude.recv(100).startswith(b"HTTP/1.")
        assert running.get("/metrics")[0] == 200
