"""Clients that hold on to our server: real sockets, deadlines of tenths of a second."""

from __future__ import annotations

import contextlib
import pathlib
import select
import socket
import ssl
import time
from collections.abc import Iterator

import pytest

from mx_exporter.access import TlsSettings
from mx_exporter.visitors import Patience
from tests.exporter.test_serving import Running, certificate, serving

HALF = b"GET /metrics HTTP/1.1\r\nHost: a\r\nX-Endless: "
WHOLE = b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n"
SHORT = Patience(asking=0.3, resting=1.0)


@contextlib.contextmanager
def sampled(folder: pathlib.Path, patience: Patience, tls: TlsSettings | None = None) -> Iterator[Running]:
    with serving(folder, tls=tls, patience=patience) as running:
        running.present.put(running.looking.tick())
        yield running


@contextlib.contextmanager
def connected(running: Running, count: int, said: bytes, host: str = "127.0.0.1") -> Iterator[list[socket.socket]]:
    with contextlib.ExitStack() as stack:
        held = []
        for _ in range(count):
            made = stack.enter_context(socket.create_connection(("127.0.0.1", running.port), 5, (host, 0)))
            with contextlib.suppress(ConnectionError):  # ended already
                made.sendall(said)
            held.append(made)
        yield held


def ended(one: socket.socket, within: float) -> bool:
    """Whether the server ends the connection within so many seconds, whatever it sends before."""
    until = time.monotonic() + within
    poll = select.poll()
    poll.register(one, select.POLLIN)
    while poll.poll(max(0.0, until - time.monotonic()) * 1e3):
        try:
            if not one.recv(1 << 16):
                return True
        except ConnectionError:
            return True
    return False


def held(sockets: list[socket.socket]) -> int:
    return sum(not ended(one, 0) for one in sockets)


@pytest.mark.parametrize(("said", "after"), [(b"", 0.3), (b"G", 0.3), (HALF, 0.3), (WHOLE + HALF, 1.0)])
def test_who_does_not_finish_a_request_is_cut_off(tmp_path: pathlib.Path, said: bytes, after: float) -> None:
    with sampled(tmp_path, SHORT) as running:
        began = time.monotonic()
        with connected(running, 1, said) as (slow,):
            assert ended(slow, after + 5)
        assert time.monotonic() - began > after - 0.05


def test_dripping_bytes_gains_no_time(tmp_path: pathlib.Path) -> None:
    with sampled(tmp_path, SHORT) as running, connected(running, 1, HALF) as (slow,):
        for _ in range(10):
            if ended(slow, 0.05):
                return
            with contextlib.suppress(ConnectionError):  # ended in between
                slow.sendall(b"x")
        pytest.fail("still connected after half a second")


def test_a_connection_that_asks_again_and_again_is_kept(tmp_path: pathlib.Path) -> None:
    """Resting between two requests for longer than a request may take."""
    with sampled(tmp_path, Patience(asking=0.3)) as running, connected(running, 1, b"") as (patient,):
        for _ in range(4):
            patient.sendall(WHOLE)
            assert patient.recv(1 << 16).startswith(b"HTTP/1.1 200")
            time.sleep(0.5)
        assert not ended(patient, 0)


def test_who_does_not_take_the_answers_is_cut_off(tmp_path: pathlib.Path) -> None:
    asked = WHOLE.replace(b"healthz", b"metrics") * 3000
    with sampled(tmp_path, SHORT) as running, connected(running, 1, asked) as (deaf,):
        whole = 3000 * len(running.get("/metrics")[2])
        time.sleep(1.6)
        received = 0
        with contextlib.suppress(ConnectionError):
            while piece := deaf.recv(1 << 20):  # what was on its way
                received += len(piece)
        assert 0 < received < whole / 2


def test_a_scrape_answers_while_500_half_open_connections_are_held(tmp_path: pathlib.Path) -> None:
    patience = Patience(asking=30.0, each=64, all=256)
    with sampled(tmp_path, patience) as running, connected(running, 500, HALF) as sockets:
        for _ in range(3):
            began = time.monotonic()
            assert running.get("/metrics")[0] == 200
            assert time.monotonic() - began < 5
        assert 60 <= held(sockets) <= 64  # the last ones; three made room for the scrapes


def test_one_address_ends_only_its_own_connections(tmp_path: pathlib.Path) -> None:
    with contextlib.ExitStack() as stack:
        running = stack.enter_context(sampled(tmp_path, Patience(each=4, all=100)))
        good = stack.enter_context(connected(running, 3, WHOLE, "127.0.0.2"))
        many = stack.enter_context(connected(running, 20, HALF))
        assert running.get("/healthz")[0] == 200
        assert held(many) <= 4
        assert held(good) == 3


def test_all_addresses_together_are_bounded(tmp_path: pathlib.Path) -> None:
    with sampled(tmp_path, Patience(each=4, all=8)) as running, contextlib.ExitStack() as stack:
        many = [stack.enter_context(connected(running, 3, HALF, f"127.0.0.{i}"))[0:] for i in range(2, 8)]
        assert running.get("/healthz")[0] == 200
        assert sum(map(held, many)) <= 8


def test_who_asked_last_goes_last(tmp_path: pathlib.Path) -> None:
    with sampled(tmp_path, Patience(each=3)) as running, connected(running, 2, b"") as (asking, silent):
        asking.sendall(WHOLE)
        assert asking.recv(1 << 16).startswith(b"HTTP/1.1 200")
        with connected(running, 2, HALF):
            assert ended(silent, 2)
            assert not ended(asking, 0)


def test_nothing_is_remembered_of_who_went(tmp_path: pathlib.Path) -> None:
    with sampled(tmp_path, SHORT) as running:
        with connected(running, 20, HALF):
            pass
        until = time.monotonic() + 5
        visitors = running.server._visitors
        while (visitors._present or visitors._of_address) and time.monotonic() < until:
            time.sleep(0.02)
        assert (visitors._present, visitors._of_address) == ({}, {})


def test_a_handshake_that_never_ends_is_cut_off(tmp_path: pathlib.Path) -> None:
    cert, key = certificate(tmp_path, "server")
    with sampled(tmp_path, Patience(asking=1.0), TlsSettings(cert, key)) as running:
        running.context = ssl.create_default_context(cafile=str(cert))
        with connected(running, 200, b"\x16\x03\x01") as sockets:
            assert running.get("/metrics")[0] == 200
            assert all(ended(one, 5) for one in sockets)
            assert running.get("/metrics")[0] == 200
