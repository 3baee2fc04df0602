"""Who we are to Prometheus, and how we know it: real TLS both ways, tokens that change, client credentials."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import pathlib
import ssl
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from mx_operator.policies.spec import OAuth2, Prometheus, Signal
from mx_operator.prometheus.clients import HttpSignal
from mx_operator.prometheus.errors import PrometheusError
from tests.operator.parts.prometheus_http import FakePrometheus, Handler, fake_prometheus, says, vector

SIGNAL = Signal("s", "x")


async def ask(settings: Prometheus) -> int:
    client = HttpSignal(settings, SIGNAL)
    try:
        return (await client.ask()).series
    finally:
        client.close()


async def reason(settings: Prometheus) -> str:
    with pytest.raises(PrometheusError) as caught:
        await ask(settings)
    return caught.value.reason


def openssl(*arguments: str | pathlib.Path) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)


@dataclasses.dataclass
class Certificates:
    folder: pathlib.Path

    def __post_init__(self) -> None:
        ca, key = self.folder / "ca.pem", self.folder / "ca.key"
        usage = ("-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign")
        openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", ca, "-subj", "/CN=ca", *usage)
        for name in ("server", "client"):
            request, extension = self.folder / f"{name}.csr", self.folder / f"{name}.ext"
            extension.write_text("subjectAltName=IP:127.0.0.1\n")
            mine = self.folder / f"{name}.key"
            openssl("req", "-newkey", "rsa:2048", "-nodes", "-keyout", mine, "-out", request, "-subj", f"/CN={name}")
            signed = ("-CA", ca, "-CAkey", key, "-CAcreateserial", "-extfile", extension, "-days", "2")
            openssl("x509", "-req", "-in", request, "-out", self.folder / f"{name}.pem", *signed)

    def __getitem__(self, name: str) -> str:
        return str(self.folder / name)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@contextlib.contextmanager
def https(certificates: Certificates) -> Iterator[str]:
    """A Prometheus that asks for our certificate."""
    with fake_prometheus(says({"10.0.0.1": 0.5})) as fake:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificates["server.pem"], certificates["server.key"])
        context.load_verify_locations(certificates["ca.pem"])
        context.verify_mode = ssl.CERT_REQUIRED
        fake._server.socket = context.wrap_socket(fake._server.socket, server_side=True)
        fake._server.handle_error = lambda *_: None
        yield fake.url.replace("http://", "https://")


async def test_both_ends_show_a_certificate(certificates: Certificates) -> None:
    with https(certificates) as url:
        whole = Prometheus(
            url,
            ca_file=certificates["ca.pem"],
            cert_file=certificates["client.pem"],
            key_file=certificates["client.key"],
        )
        assert await ask(whole) == 1
        assert await reason(dataclasses.replace(whole, cert_file=None, key_file=None)) == "Unreachable"
        assert await reason(dataclasses.replace(whole, ca_file=None)) == "Unreachable"
        assert await reason(dataclasses.replace(whole, ca_file="/no/such/ca.pem")) == "Configuration"


async def test_a_user_and_password_come_from_a_file(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "basic"
    file.write_text("team:a:b\n")
    with fake_prometheus(says({"10.0.0.1": 0.5})) as fake:
        assert await ask(Prometheus(fake.url, basic_auth_file=str(file))) == 1
        sent = fake.requests[-1][2]["Authorization"].removeprefix("Basic ")
        assert base64.b64decode(sent) == b"team:a:b"
        assert await reason(Prometheus(fake.url, basic_auth_file=str(tmp_path / "none"))) == "NoCredentials"


class Issuer:
    """A token endpoint and a Prometheus behind it, in one."""

    def __init__(self) -> None:
        self.issued, self.valid = 0, "token-1"

    def __call__(self, form: dict[str, str], handler: Handler) -> None:
        if handler.path == "/token":
            self.issued += 1
            self.form, self.client = form, handler.headers["Authorization"]
            handler.say({"access_token": f"token-{self.issued}", "expires_in": 3600})
        elif handler.headers["Authorization"] == f"Bearer {self.valid}":
            handler.say(vector({"10.0.0.1": 0.5}))
        else:
            handler.say({"error": "no"}, 401)


def with_oauth(fake: FakePrometheus, secret: pathlib.Path, **changes: Any) -> Prometheus:
    oauth = OAuth2(f"{fake.url}/token", "me", str(secret), ("read", "metrics"))
    return Prometheus(fake.url, oauth2=dataclasses.replace(oauth, **changes))


async def test_client_credentials_are_kept_until_they_are_refused(tmp_path: pathlib.Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("hush\n")
    issuer = Issuer()
    with fake_prometheus(issuer) as fake:
        client = HttpSignal(with_oauth(fake, secret), SIGNAL)
        try:
            for _ in range(3):
                assert (await client.ask()).series == 1
            assert issuer.issued == 1
            assert issuer.form == {"grant_type": "client_credentials", "scope": "read metrics"}
            assert base64.b64decode(issuer.client.removeprefix("Basic ")) == b"me:hush"
            issuer.valid = "token-2"
            with pytest.raises(PrometheusError, match="HTTP 401: no"):
                await client.ask()
            assert (await client.ask()).series == 1
        finally:
            client.close()


async def test_without_a_token_nothing_is_asked(tmp_path: pathlib.Path) -> None:
    with fake_prometheus(Issuer()) as fake:
        assert await reason(with_oauth(fake, tmp_path / "none")) == "OAuth2"
        assert fake.requests == []
        secret = tmp_path / "secret"
        secret.write_text("hush")
        assert await reason(with_oauth(fake, secret, token_url=f"{fake.url}/api/v1/other")) == "OAuth2"


@pytest.mark.parametrize("content", ["hush-one\nhush-two", "h€sh", "hush\x00"])
async def test_a_token_that_cannot_be_sent_is_never_shown(tmp_path: pathlib.Path, content: str) -> None:
    file = tmp_path / "token"
    file.write_text(content)
    with fake_prometheus(says({"10.0.0.1": 0.5})) as fake:
        with pytest.raises(PrometheusError, match=r"token.* is not one line of plain text") as caught:
            await ask(Prometheus(fake.url, bearer_token_file=str(file)))
        assert caught.value.reason == "NoCredentials"
        assert fake.requests == []
    assert "h" + content[1:4] not in str(caught.value).replace(str(file), "")


async def test_nor_is_one_that_a_token_endpoint_gave(tmp_path: pathlib.Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("hush")
    gives = {"access_token": "hush\nhush"}
    with fake_prometheus(lambda _, handler: handler.say(gives)) as fake, pytest.raises(PrometheusError) as caught:
        await ask(with_oauth(fake, secret))
    assert caught.value.reason == "OAuth2"
    assert "hush" not in str(caught.value)
