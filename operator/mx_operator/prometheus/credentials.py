"""Credentials that may change under us: every request reads what the file says now."""

from __future__ import annotations

import base64
import pathlib
import time
from collections.abc import Callable
from typing import Final

import requests
import requests.auth

import mx_wire
from mx_operator.policies.spec import OAuth2, Prometheus
from mx_operator.prometheus.errors import PrometheusError

#: An OAuth2 token is renewed this long before it ends, in seconds.
_EARLY: Final = 30.0
_TOKEN_TIMEOUT: Final = 5.0


class FileAuth(requests.auth.AuthBase):
    """`Authorization` from a file: a bearer token, or `user:password`."""

    def __init__(self, path: str, basic: bool) -> None:
        self._path, self._basic = path, basic
        self._file = mx_wire.TokenFile(path)

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        """Sign one request, with what the file says now."""
        content = self._file.token()
        if not content:
            raise PrometheusError("NoCredentials", f"{self._path} is missing or empty")
        if not self._basic and not _plain(content):
            # Whoever tries to send it would say it, in the words of an error that go into logs and statuses.
            raise PrometheusError("NoCredentials", f"{self._path} is not one line of plain text")
        encoded = base64.b64encode(content.encode()).decode() if self._basic else content
        request.headers["Authorization"] = f"{'Basic' if self._basic else 'Bearer'} {encoded}"
        return request


def _plain(token: str) -> bool:
    """Whether a header can carry it."""
    return token.isascii() and token.isprintable()


class ClientCredentials(requests.auth.AuthBase):
    """OAuth2's client-credentials grant; the token is kept until shortly before it ends."""

    def __init__(self, settings: OAuth2, verify: str | bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings, self._verify, self._clock = settings, verify, clock
        self._token, self._until = "", float("-inf")

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        """Sign one request, after fetching a token where that is due."""
        if self._clock() >= self._until:
            self._token, lifetime = self._fetch()
            self._until = self._clock() + lifetime - _EARLY
        request.headers["Authorization"] = f"Bearer {self._token}"
        request.register_hook("response", self._answered)  # type: ignore[no-untyped-call]
        return request

    def _answered(self, response: requests.Response, **_: object) -> None:
        if response.status_code == requests.codes.unauthorized:
            self._until = float("-inf")  # revoked before its time: the next query fetches another

    def _fetch(self) -> tuple[str, float]:
        settings = self._settings
        try:
            secret = pathlib.Path(settings.client_secret_file).read_text(encoding="utf-8").strip()
            form = {"grant_type": "client_credentials", "scope": " ".join(settings.scopes)}
            with requests.Session() as session:
                session.trust_env = False
                answer = session.post(
                    settings.token_url,
                    data={name: value for name, value in form.items() if value},
                    auth=(settings.client_id, secret),
                    timeout=_TOKEN_TIMEOUT,
                    verify=self._verify,
                    allow_redirects=False,
                )
            answer.raise_for_status()
            content = answer.json()
            token, lifetime = str(content["access_token"]), float(content.get("expires_in", 300))
            if not _plain(token):
                raise ValueError
            return token, lifetime
        except (OSError, KeyError, TypeError, ValueError) as error:
            raise PrometheusError("OAuth2", f"{settings.token_url}: no token: {type(error).__name__}") from error


def credentials(settings: Prometheus) -> requests.auth.AuthBase | None:
    """What a Prometheus is to be told of us, if anything."""
    if settings.bearer_token_file:
        return FileAuth(settings.bearer_token_file, basic=False)
    if settings.basic_auth_file:
        return FileAuth(settings.basic_auth_file, basic=True)
    if settings.oauth2:
        return ClientCredentials(settings.oauth2, settings.ca_file or True)
    return None
