"""Who may read the page and under which certificate: files that are read again when they change.

Secrets and certificates are rotated under a running process, so every one of them is a file, never a value.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import dataclasses
import hmac
import logging
import pathlib
import ssl
from collections.abc import Callable, Iterator

from mx_exporter.documents import read
from mx_exporter.errors import ConfigurationError

_LOG = logging.getLogger("mx_exporter")


@dataclasses.dataclass(frozen=True, slots=True)
class TlsSettings:
    """The server's certificate, and whose clients it answers."""

    cert_file: pathlib.Path | None = None
    key_file: pathlib.Path | None = None
    client_ca_file: pathlib.Path | None = None  # when given, clients must show a certificate of it


@dataclasses.dataclass(frozen=True, slots=True)
class AuthSettings:
    """Which logins open /metrics; with both, either does."""

    basic_file: pathlib.Path | None = None  # lines of user:password
    bearer_token_file: pathlib.Path | None = None


class _Watched:
    """A small file of logins, read again when it changed. One that cannot be used any more opens nothing."""

    def __init__(self, path: pathlib.Path, what: str, parse: Callable[[str, pathlib.Path], tuple[str, ...]]) -> None:
        self._path, self._what, self._parse = path, what, parse
        self._stamp = self._stamped()
        self._accepted = self._read()
        self._problem: str | None = None

    def _stamped(self) -> tuple[int, int, int] | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino

    def accepted(self) -> tuple[str, ...]:
        """The logins of now; none while the file cannot be used, which is said once."""
        stamp = self._stamped()
        if stamp is None or stamp != self._stamp:
            problem = None
            try:
                self._accepted, self._stamp = self._read(), stamp
            except ConfigurationError as error:
                self._accepted, self._stamp, problem = (), None, str(error)
            if problem != self._problem:
                said = f"{problem} (until then it opens nothing)" if problem else f"{self._path}: opens /metrics again"
                _LOG.warning("%s", said)
            self._problem = problem
        return self._accepted

    def _read(self) -> tuple[str, ...]:
        found = self._parse(read(self._path, self._what).removeprefix("\ufeff"), self._path)
        if not found:
            raise ConfigurationError(f"{self._path}: empty: put the login in, or leave the setting out")
        return found


def _logins(text: str, path: pathlib.Path) -> tuple[str, ...]:
    """The lines of a file of user:password; one that is none is a mistake, whose words are a secret all the same."""
    lines = list(enumerate(map(str.strip, text.splitlines()), start=1))
    for number, line in lines:
        user, _, password = line.partition(":")
        if line and not (user and password):
            raise ConfigurationError(
                f"{path}: line {number}: no user and password: write USER:PASSWORD, one login a line"
            )
    return tuple(line for _, line in lines if line)


def _token(text: str, _path: pathlib.Path) -> tuple[str, ...]:
    """The first line that is not empty."""
    return tuple(filter(None, map(str.strip, text.splitlines())))[:1]


class Gate:
    """Decides by an Authorization header. Without any login configured, everybody may read."""

    def __init__(self, settings: AuthSettings) -> None:
        """Reads the logins.

        Raises:
            ConfigurationError: A file cannot be read, is empty, or has a line that is no login.
        """
        basic, bearer = settings.basic_file, settings.bearer_token_file
        self._basic = _Watched(basic, "a file of user:password lines", _logins) if basic else None
        self._bearer = _Watched(bearer, "a token", _token) if bearer else None

    @property
    def challenge(self) -> str:
        """What a WWW-Authenticate header says."""
        kinds = (('Basic realm="mx-exporter"', self._basic), ("Bearer", self._bearer))
        return ", ".join(kind for kind, watched in kinds if watched)

    def allows(self, header: str) -> bool:
        """Whether a request with this Authorization header may read."""
        if self._basic is None and self._bearer is None:
            return True
        scheme, _, given = header.partition(" ")
        given = given.strip()
        if scheme.lower() == "bearer" and self._bearer is not None:
            return _among(given, self._bearer.accepted())
        if scheme.lower() == "basic" and self._basic is not None:
            return _among(_decoded(given), self._basic.accepted())
        return False


def _among(given: str | None, accepted: tuple[str, ...]) -> bool:
    """Whether a secret is one of these, in a time that does not tell where it differs."""
    if not given:
        return False
    secret = given.encode("utf-8", "surrogateescape")  # as the bytes came, text or not
    matches = [hmac.compare_digest(secret, one.encode()) for one in accepted]  # all of them, always
    return any(matches)


def _decoded(given: str) -> str | None:
    try:
        return base64.b64decode(given, validate=True).decode("utf-8")
    except (binascii.Error, UnicodeDecodeError, ValueError):
        return None


def _changed(path: pathlib.Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


class Certificates:
    """A TLS context for the server, whose certificate and clients' CA are replaced when their files change.

    What is replaced is a whole context, which every handshake asks for: into one that is in use a pair can be loaded by
    halves, and no CA can be taken out of it again.
    """

    def __init__(self, settings: TlsSettings) -> None:
        self._settings = settings
        self._stamp = self._stamped()
        self._newest = self._made()
        self.context = self._made()
        self.context.sni_callback = self._hand_over
        if settings.client_ca_file is not None:
            self.context.num_tickets = 0  # a resumed session would not be asked for its certificate again
            self.context.options |= ssl.OP_NO_TICKET

    @classmethod
    def of(cls, settings: TlsSettings) -> Certificates | None:
        """The certificates that are configured; None where none are.

        Raises:
            ConfigurationError: Half of a pair, or files that are no certificate and key.
        """
        if settings.cert_file is None and settings.key_file is None:
            if settings.client_ca_file is not None:
                raise ConfigurationError("tls.clientCaFile needs tls.certFile and tls.keyFile: give all three")
            return None
        if settings.cert_file is None or settings.key_file is None:
            raise ConfigurationError("tls needs both certFile and keyFile: give the other one too")
        return cls(settings)

    def refresh(self) -> None:
        """Loads what changed; what cannot be loaded leaves the old certificate in use."""
        stamp = self._stamped()
        if stamp != self._stamp:
            try:
                self._newest, self._stamp = self._made(), stamp
            except ConfigurationError as error:
                _LOG.warning("the old certificate stays in use: %s", error)

    def _stamped(self) -> tuple[int, ...]:
        paths = (self._settings.cert_file, self._settings.key_file, self._settings.client_ca_file)
        return tuple(_changed(path) if path else 0 for path in paths)

    def _hand_over(self, connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        connection.context = self._newest

    def _made(self) -> ssl.SSLContext:
        cert, key, clients = self._settings.cert_file, self._settings.key_file, self._settings.client_ca_file
        assert cert is not None
        made = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        with _complaining(f"{cert}, {key}", "give a PEM certificate and its key"):
            made.load_cert_chain(cert, key)
        if clients is not None:
            with _complaining(f"{clients}", "give a PEM file of CA certificates"):
                made.load_verify_locations(clients)
            made.verify_mode = ssl.CERT_REQUIRED
        return made


@contextlib.contextmanager
def _complaining(files: str, mend: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:  # as TLS's own errors are
        raise ConfigurationError(f"tls: {files}: {error.strerror or error}: {mend}") from error
