"""The HTTP seam against servers that do everything a server can do wrong."""

from __future__ import annotations

import asyncio
import gzip
import pathlib
import ssl
import subprocess
import time
import tracemalloc
import zlib
from collections.abc import Iterator

import pytest

from mx_exporter.engines import ScrapeSettings, gauges, pages
from mx_exporter.engines.targets import Target
from mx_exporter.errors import ConfigurationError
from mx_exporter.model import Pod
from tests.exporter.engines.servers import Answer, EngineServer

PAGE = b'# TYPE x gauge\nvllm:kv_cache_usage_perc{engine="0"} 0.62\n'
LINE = b'vllm:kv_cache_usage_perc{engine="0"} 0.62'


@pytest.fixture
def server() -> Iterator[EngineServer]:
    with EngineServer() as server:
        yield server


def target(server: EngineServer, scheme: str = "http", host: str = "127.0.0.1") -> Target:
    return Target(Pod("n", "p", "u", host), server.port, "/metrics", scheme)


async def read(
    server: EngineServer,
    times: int = 1,
    *,
    scheme: str = "http",
    host: str = "127.0.0.1",
    settings: ScrapeSettings | None = None,
) -> list[pages.Page]:
    reader = pages.Pages(gauges.builtin(), settings or ScrapeSettings(timeout=0.5))
    try:
        return [await reader.read(target(server, scheme, host), "/metrics") for _ in range(times)]
    finally:
        await reader.close()
        await asyncio.sleep(0.01)


async def reason(
    server: EngineServer, answer: Answer | None = None, settings: ScrapeSettings | None = None, scheme: str = "http"
) -> str:
    """Why the page cannot be read."""
    if answer is not None:
        server.answers["/metrics"] = answer
    with pytest.raises(pages.PageError) as error:
        await read(server, settings=settings, scheme=scheme)
    return error.value.reason


async def test_reads_the_wanted_lines_over_one_connection(server: EngineServer) -> None:
    server.answers["/metrics"] = Answer(PAGE)
    found = await read(server, 5)
    assert [page.lines for page in found] == [(LINE,)] * 5
    assert server.connections == 1
    assert server.requests[0].headers["accept"].startswith("text/plain;version=0.0.4,")
    assert server.requests[0].headers["accept-encoding"] == "identity"


async def test_a_failed_page_does_not_cost_the_next_one(server: EngineServer) -> None:
    await reason(server, Answer(PAGE, stall_after=10))
    server.answers["/metrics"] = Answer(PAGE)
    assert (await read(server))[0].lines == (LINE,)


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
async def test_compressed_pages_are_read_though_not_asked_for(server: EngineServer, encoding: str) -> None:
    packed = gzip.compress(PAGE) if encoding == "gzip" else zlib.compress(PAGE)
    server.answers["/metrics"] = Answer(packed, headers=(("Content-Encoding", encoding),), chunked=True)
    assert (await read(server))[0].lines == (LINE,)


OK = b"HTTP/1.1 200 OK\r\n"
CHUNKS = OK + b"Content-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n"
REASONS = {
    "no answer": (Answer(hang=True), "timeout"),
    "silence in the middle": (Answer(PAGE, stall_after=20), "timeout"),
    "a reset in the middle": (Answer(PAGE, reset_after=20), "truncated"),
    "a reset in the middle of a chunk": (Answer(PAGE, reset_after=20, chunked=True), "truncated"),
    "a length that is not reached": (Answer(PAGE, length=len(PAGE) + 100, reset_after=len(PAGE)), "truncated"),
    "a last line without its end": (Answer(PAGE[:-1]), "truncated"),
    "half of a gzip": (Answer(gzip.compress(PAGE)[:30], headers=(("Content-Encoding", "gzip"),)), "truncated"),
    "no gzip": (Answer(PAGE, headers=(("Content-Encoding", "gzip"),)), "encoding"),
    "more after a gzip": (Answer(gzip.compress(PAGE) + PAGE, headers=(("Content-Encoding", "gzip"),)), "encoding"),
    "two gzips": (Answer(gzip.compress(PAGE) * 2, headers=(("Content-Encoding", "gzip"),), chunked=True), "encoding"),
    "a gzip and more for ever": (
        Answer(gzip.compress(PAGE), headers=(("Content-Encoding", "gzip"),), endless=b"x" * 60_000),
        "encoding",
    ),
    "brotli": (Answer(PAGE, headers=(("Content-Encoding", "br"),)), "encoding"),
    "nothing": (Answer(b""), "empty"),
    "an error": (Answer(PAGE, status=500), "http_status"),
    "no permission": (Answer(PAGE, status=401), "http_status"),
    "no such page": (Answer(PAGE, status=404), "not_found"),
    "a redirect": (Answer(PAGE, status=302, headers=(("Location", "http://127.0.0.1:1/metrics"),)), "redirect"),
    "JSON": (Answer(b"[]", kind="application/json"), "json"),
    "a page for people": (Answer(PAGE, kind="text/html"), "not_metrics"),
    "protobuf": (Answer(PAGE, kind="application/vnd.google.protobuf"), "not_metrics"),
    "another protocol": (Answer(raw=b"SSH-2.0-OpenSSH_9\r\n"), "not_http"),
    "headers without end": (Answer(raw=b"HTTP/1.1 200 OK\r\n" + b"A: " + b"x" * 100_000), "not_http"),
    "headers for ever": (Answer(raw=OK, raw_endless=b"A: b\r\n" * 5000), "not_http"),
    "hints for ever": (Answer(raw=b"", raw_endless=b"HTTP/1.1 103 Early Hints\r\n\r\n" * 2000), "timeout"),
    "a chunk's extension for ever": (Answer(raw=CHUNKS + b"5;", raw_endless=b"x" * 60_000), "timeout"),
    "chunks of one byte for ever": (Answer(raw=CHUNKS, raw_endless=b"1\r\n#\r\n" * 10_000), "timeout"),
    "too many wanted lines": (Answer((LINE + b"\n") * 5000), "too_many_series"),
}


@pytest.mark.parametrize("case", REASONS)
async def test_one_word_for_what_is_wrong(server: EngineServer, case: str) -> None:
    answer, expected = REASONS[case]
    assert await reason(server, answer) == expected


async def test_trailers_for_ever(server: EngineServer) -> None:
    answer = Answer(raw=CHUNKS + b"0\r\n", raw_endless=b"A: b\r\n" * 5000)
    assert await reason(server, answer) in ("not_http", "truncated")  # as the bytes happen to arrive


async def test_nobody_listens(server: EngineServer) -> None:
    server.close()
    assert await reason(server) == "refused"


async def test_a_redirect_is_not_followed(server: EngineServer) -> None:
    with EngineServer({"/metrics": Answer(PAGE)}) as elsewhere:
        there = ("Location", f"http://127.0.0.1:{elsewhere.port}/metrics")
        assert await reason(server, Answer(status=307, headers=(there,))) == "redirect"
        assert elsewhere.requests == []


async def test_no_proxy_is_asked(server: EngineServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with EngineServer() as proxy:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        server.answers["/metrics"] = Answer(PAGE)
        await read(server)
        assert proxy.requests == []


async def test_a_page_over_the_cap_is_no_page(server: EngineServer) -> None:
    settings = ScrapeSettings(max_page=100_000, timeout=5)
    body = PAGE + b"x 1\n" * 25_000
    assert await reason(server, Answer(body), settings) == "too_large"
    assert await reason(server, Answer(body, chunked=True), settings) == "too_large"
    server.answers["/metrics"] = Answer(body[: 100_000 - (100_000 - len(PAGE)) % 4])
    assert (await read(server, settings=settings))[0].lines == (LINE,)


async def test_an_endless_page_ends_at_the_cap(server: EngineServer) -> None:
    began = time.monotonic()
    assert await reason(server, Answer(endless=b"a 1\n" * 10_000), ScrapeSettings(timeout=10)) == "too_large"
    assert time.monotonic() - began < 5


async def test_a_bomb_is_measured_after_decompression_and_never_held(server: EngineServer) -> None:
    """200 MB in 200 kB: refused at the cap, while a few pieces at most are in memory."""
    packed = gzip.compress(b"\0" * (200 << 20), compresslevel=1)
    answer = Answer(packed, headers=(("Content-Encoding", "gzip"),))
    tracemalloc.start()
    try:
        assert await reason(server, answer, ScrapeSettings(timeout=30)) == "too_large"
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


async def test_a_drip_ends_with_the_timeout(server: EngineServer) -> None:
    """Each byte in time and the page never: the timeout is the page's."""

    async def drip(writer: asyncio.StreamWriter) -> None:
        while True:
            writer.write(b"1\r\n#\r\n")
            await writer.drain()
            await asyncio.sleep(0.02)

    answer = Answer(chunked=True)

    async def body(_: Answer, writer: asyncio.StreamWriter, chunked: bool) -> None:
        assert chunked
        await drip(writer)

    server._body = body  # type: ignore[assignment, method-assign]
    began = time.monotonic()
    assert await reason(server, answer) == "timeout"
    assert 0.4 < time.monotonic() - began < 1.5


async def test_cookies_are_not_kept(server: EngineServer) -> None:
    server.answers["/metrics"] = Answer(PAGE, headers=(("Set-Cookie", "a=b; Path=/"),))
    await read(server, 2)
    assert all("cookie" not in request.headers for request in server.requests)


async def test_an_address_of_version_6() -> None:
    with EngineServer({"/metrics": Answer(PAGE)}, host="::1") as server:
        assert (await read(server, host="::1"))[0].lines == (LINE,)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[pathlib.Path, pathlib.Path]:
    folder = tmp_path_factory.mktemp("tls")
    subprocess.run(
        [
            "openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=engine.test",
            "-addext", "subjectAltName=DNS:engine.test", "-keyout", folder / "key.pem", "-out", folder / "ca.pem",
        ],
        check=True,
        capture_output=True,
    )  # fmt: skip
    return folder / "ca.pem", folder / "key.pem"


class TestTls:
    @pytest.fixture
    def secure(self, certificate: tuple[pathlib.Path, pathlib.Path]) -> Iterator[EngineServer]:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(*certificate)
        with EngineServer({"/metrics": Answer(PAGE)}, tls=context) as server:
            yield server

    @pytest.fixture
    def settings(self, certificate: tuple[pathlib.Path, pathlib.Path], tmp_path: pathlib.Path) -> ScrapeSettings:
        (tmp_path / "token").write_text("secret\n")
        return ScrapeSettings(
            timeout=2, ca_file=certificate[0], server_name="engine.test", bearer_token_file=tmp_path / "token"
        )

    async def test_a_certificate_of_our_ca_and_its_name(self, secure: EngineServer, settings: ScrapeSettings) -> None:
        found = await read(secure, 3, scheme="https", settings=settings)
        assert found[0].lines == (LINE,)
        assert secure.connections == 1
        assert secure.requests[0].headers["authorization"] == "Bearer secret"

    async def test_an_unknown_ca_and_a_wrong_name_are_refused(
        self, secure: EngineServer, settings: ScrapeSettings
    ) -> None:
        assert await reason(secure, settings=ScrapeSettings(timeout=2), scheme="https") == "tls"
        wrong = ScrapeSettings(timeout=2, ca_file=settings.ca_file, server_name="other.test")
        assert await reason(secure, settings=wrong, scheme="https") == "tls"
        by_address = ScrapeSettings(timeout=2, ca_file=settings.ca_file)
        assert await reason(secure, settings=by_address, scheme="https") == "tls"
        assert secure.requests == []

    async def test_the_token_goes_to_nobody_who_was_not_verified(
        self, secure: EngineServer, server: EngineServer, settings: ScrapeSettings
    ) -> None:
        blind = ScrapeSettings(timeout=2, insecure_skip_verify=True, bearer_token_file=settings.bearer_token_file)
        await read(secure, scheme="https", settings=blind)
        server.answers["/metrics"] = Answer(PAGE)
        await read(server, settings=settings)
        assert "authorization" not in secure.requests[0].headers
        assert "authorization" not in server.requests[0].headers

    async def test_the_token_over_http_where_that_is_asked_for(
        self, server: EngineServer, tmp_path: pathlib.Path
    ) -> None:
        file = tmp_path / "token"
        file.write_text("one\n")
        server.answers["/metrics"] = Answer(PAGE)
        reader = pages.Pages(gauges.builtin(), ScrapeSettings(bearer_token_file=file, bearer_over_http=True))
        for token in ("one", "two"):
            file.write_text(f"{token}\n")
            await reader.read(target(server), "/metrics")
        await reader.close()
        assert [request.headers["authorization"] for request in server.requests] == ["Bearer one", "Bearer two"]

    async def test_http_on_a_port_that_speaks_tls(self, secure: EngineServer) -> None:
        assert await reason(secure) in ("not_http", "reset")

    async def test_tls_on_a_port_that_speaks_http(self, server: EngineServer, settings: ScrapeSettings) -> None:
        assert await reason(server, settings=settings, scheme="https") in ("tls", "reset", "timeout")


def test_files_that_cannot_be_used_are_said_at_the_start(tmp_path: pathlib.Path) -> None:
    empty = tmp_path / "ca.pem"
    empty.write_text("")
    for settings, said in (
        (ScrapeSettings(ca_file=tmp_path / "no.pem"), f"{tmp_path}/no.pem: No such file or directory: name a PEM file"),
        (ScrapeSettings(ca_file=empty), f"{empty}: "),
        (ScrapeSettings(bearer_token_file=tmp_path / "no"), f"{tmp_path}/no: cannot be read: name a file that holds"),
    ):
        with pytest.raises(ConfigurationError) as error:
            pages.check(settings)
        assert str(error.value).startswith(said)
        assert "\n" not in str(error.value)
