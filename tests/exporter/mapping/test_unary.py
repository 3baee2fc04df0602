"""Our one gRPC call against real gRPC servers, and against peers that are none."""

from __future__ import annotations

import contextlib
import pathlib
import socket
import threading
import time
from collections.abc import Iterator

import grpc
import pytest

from mx_exporter.mapping.kubelet import Kubelet
from mx_exporter.mapping.unary import call
from tests.exporter.mapping.kubelets import Answers, Given, kubelet, response

METHOD = "/v1.PodResourcesLister/List"


def ask(path: pathlib.Path, method: str = METHOD, timeout: float = 3.0, largest: int = 16 << 20) -> bytes:
    return call(path, method, b"", timeout, largest)


@pytest.mark.parametrize("pods", [0, 1, 200, 20_000])
def test_answers_of_every_size_come_whole(tmp_path: pathlib.Path, pods: int) -> None:
    """Beyond 64 kB the peer needs a larger window, beyond 16 kB several frames."""
    given = [Given("ai", f"vllm-{i}", (("GPU-1b2c",),)) for i in range(pods)]
    with kubelet(tmp_path / "s", given):
        assert ask(tmp_path / "s", timeout=20.0) == response(given)


def test_many_calls_one_after_another(tmp_path: pathlib.Path) -> None:
    with kubelet(tmp_path / "s", [Given("ai", "a", (("GPU-1",),))]) as answers:
        bodies = {ask(tmp_path / "s") for _ in range(50)}
        assert (len(bodies), answers.asked) == (1, 50)


def test_a_method_that_is_not_there_is_no_answer(tmp_path: pathlib.Path) -> None:
    with kubelet(tmp_path / "s", []), pytest.raises(OSError, match="no whole message"):
        ask(tmp_path / "s", "/v1.PodResourcesLister/Nothing")


def test_a_server_that_fails_is_no_answer(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_self: Answers, _request: bytes, context: grpc.ServicerContext) -> bytes:
        context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too often")

    monkeypatch.setattr(Answers, "_list", fails)
    with kubelet(tmp_path / "s", []), pytest.raises(OSError, match="no whole message"):
        ask(tmp_path / "s")


def test_an_answer_that_is_too_long_is_refused(tmp_path: pathlib.Path) -> None:
    given = [Given("ai", f"vllm-{i}", (("GPU-1b2c",),)) for i in range(4000)]
    with kubelet(tmp_path / "s", given), pytest.raises(OSError):
        ask(tmp_path / "s", largest=100_000, timeout=1.0)


def test_nobody_there_is_said_at_once(tmp_path: pathlib.Path) -> None:
    with pytest.raises(FileNotFoundError):
        ask(tmp_path / "s")


@contextlib.contextmanager
def peer(path: pathlib.Path, says: bytes, then_closes: bool) -> Iterator[None]:
    """Somebody who says this to whoever comes, and then closes or says no more."""
    with socket.socket(socket.AF_UNIX) as listening, contextlib.ExitStack() as open_ones:
        listening.bind(str(path))
        listening.listen()

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection = open_ones.enter_context(listening.accept()[0])
                    connection.sendall(says)
                    if then_closes:
                        connection.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield
        listening.shutdown(socket.SHUT_RDWR)
        thread.join(5)


@pytest.mark.parametrize(
    "says",
    [
        b"",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"\0\0\0\x04\0\0\0\0\0",  # settings, and no more
        b"\0\0\x04\x03\0\0\0\0\x01\0\0\0\0",  # the stream is reset
        b"\0\0\x08\x07\0\0\0\0\0" + bytes(8),  # going away
        b"\0\0\x05\0\x01\0\0\0\x01\x01\0\0\0\0",  # a compressed message
        b"\0\0\x05\0\x01\0\0\0\x01\0\0\0\0\x07",  # a message that is shorter than it says
        b"\xff\xff\xff\0\0\0\0\0\x01",
    ],
)
@pytest.mark.parametrize("then_closes", [True, False])
def test_who_speaks_something_else_is_no_kubelet(tmp_path: pathlib.Path, says: bytes, then_closes: bool) -> None:
    with peer(tmp_path / "s", says, then_closes):
        begun = time.monotonic()
        with pytest.raises(OSError):
            ask(tmp_path / "s", timeout=0.3)
        assert time.monotonic() - begun < 2


def test_a_kubelet_that_hangs_does_not_keep_us_from_ending(tmp_path: pathlib.Path) -> None:
    """A pod that does not end within its grace period is killed."""
    asking = Kubelet(tmp_path / "s", timeout=4.0)
    with peer(tmp_path / "s", b"", then_closes=False):
        asking.start()
        time.sleep(0.2)
        begun = time.monotonic()
        asking.stop()
        assert time.monotonic() - begun < 2
    thread = asking._thread
    assert thread is not None
    thread.join(10)
    assert not thread.is_alive()
