"""The whole server: health, reflection, TLS that is renewed, the metrics page, and a stop that drains."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import pathlib
import re
import subprocess
import sys
import time
import urllib.request
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from mx_server import settings
from mx_server.app import Server
from mx_server.backends.memory import MemoryBackend
from mx_server.core.records import Listing, Outcome, StatusUpdate
from mx_server.settings import BadSetting, ServerTls, Settings
from mx_server.telemetry import version
from mx_wire import SERVICE, ListSourcesRequest, Tls, aio_channel, aio_stub
from tests.server.conftest import Peer, serving

LISTEN = Settings(listen="127.0.0.1:0", reaper_interval=3600)
MX_SERVER = pathlib.Path(sys.executable).with_name("mx-server")


# -- services beside the four calls -----------------------------------------------------------------------------------


async def test_health_serves_by_name_and_says_so_while_stopping() -> None:
    server = Server(LISTEN)
    await server.__aenter__()
    async with aio_channel(server.address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        for name in ("", SERVICE):
            answer = await stub.Check(health_pb2.HealthCheckRequest(service=name))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        with pytest.raises(grpc.aio.AioRpcError) as unknown:
            await stub.Check(health_pb2.HealthCheckRequest(service="nobody"))
        assert unknown.value.code() is grpc.StatusCode.NOT_FOUND
        watch = stub.Watch(health_pb2.HealthCheckRequest(service=SERVICE))
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
        stopping = asyncio.create_task(server.__aexit__(None, None, None))
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        watch.cancel()
        await stopping


async def test_an_open_watch_of_health_does_not_hold_up_a_stop() -> None:
    """It ends by itself, after it has told of the stop: of a service that is here and of one that is not."""
    server = Server(dataclasses.replace(LISTEN, grace=60))
    await server.__aenter__()
    async with aio_channel(server.address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        known, unknown = (stub.Watch(health_pb2.HealthCheckRequest(service=name)) for name in (SERVICE, "nobody"))
        assert (await known.read()).status == health_pb2.HealthCheckResponse.SERVING
        assert (await unknown.read()).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
        async with asyncio.timeout(10):
            await server.__aexit__(None, None, None)
            assert (await known.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
            for watch in (known, unknown):
                with pytest.raises(grpc.aio.AioRpcError) as ended:
                    await watch.read()
                assert ended.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_port_alone_is_taken_for_both_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """`:PORT`, with loopback in place of every address: tests listen on nothing else."""
    monkeypatch.setattr(settings, "everywhere", lambda: "127.0.0.1")
    async with serving(dataclasses.replace(LISTEN, listen=":0", metrics_listen=":0")) as server:
        assert server.address.startswith("127.0.0.1:")
        assert server.metrics_address is not None
        assert await asyncio.to_thread(_get, f"http://{server.metrics_address}/healthz") == "ok\n"
        async with aio_channel(server.address) as channel:
            await aio_stub(channel).ListSources(ListSourcesRequest(), timeout=3)


async def test_reflection_describes_every_service_it_lists() -> None:
    async with serving(LISTEN) as server, aio_channel(server.address) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)

        async def asked(**question: Any) -> Any:
            request = reflection_pb2.ServerReflectionRequest(**question)
            (answer,) = [answer async for answer in stub.ServerReflectionInfo(iter([request]))]
            return answer

        listed = (await asked(list_services="")).list_services_response.service
        names = [service.name for service in listed]
        assert {SERVICE, "grpc.health.v1.Health"} <= set(names)
        for name in names:
            answer = await asked(file_containing_symbol=name)
            assert answer.WhichOneof("message_response") == "file_descriptor_response", name
        answer = await asked(file_containing_symbol=f"{SERVICE}.UpdateStatus")
        files = [
            descriptor_pb2.FileDescriptorProto.FromString(data)
            for data in answer.file_descriptor_response.file_descriptor_proto
        ]
        methods = {method.name for file in files for service in file.service for method in service.method}
        assert methods == {"PublishMetadata", "ListSources", "GetMetadata", "UpdateStatus"}
        missing = await asked(file_containing_symbol="no.such.Thing")
        assert missing.error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]


# -- TLS --------------------------------------------------------------------------------------------------------------


def _certificate(folder: pathlib.Path, name: str) -> tuple[pathlib.Path, pathlib.Path]:
    """A self-signed certificate for localhost, good as its own CA, and its key."""
    certificate, key = folder / f"{name}.pem", folder / f"{name}.key"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    more = ["-keyout", str(key), "-out", str(certificate), "-days", "2", "-subj", f"/CN={name}", "-addext"]
    subprocess.run([*command, *more, "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True)
    return certificate, key


async def _listed(address: str, tls: Tls) -> bool:
    async with aio_channel(address, tls=tls) as channel:
        try:
            await aio_stub(channel).ListSources(ListSourcesRequest(), timeout=3)
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.UNAVAILABLE:
                raise
            return False
        return True


async def test_tls_and_a_certificate_that_is_renewed_under_the_running_server(tmp_path: pathlib.Path) -> None:
    first, first_key = _certificate(tmp_path, "first")
    second, second_key = _certificate(tmp_path, "second")
    served = ServerTls(tmp_path / "tls.crt", tmp_path / "tls.key")

    def serve_with(certificate: pathlib.Path, key: pathlib.Path | None) -> None:
        for source, target in ((certificate, served.cert_file), (key, served.key_file)):
            if source is not None:
                fresh = target.with_suffix(".new")
                fresh.write_bytes(source.read_bytes())
                fresh.replace(target)

    serve_with(first, first_key)
    async with serving(dataclasses.replace(LISTEN, tls=served)) as server:
        assert await _listed(server.address, Tls(ca_file=first))
        assert not await _listed(server.address, Tls(ca_file=second))
        serve_with(second, None)
        assert await _listed(server.address, Tls(ca_file=first)), "half a renewal: the last good pair serves on"
        serve_with(second, second_key)
        assert await _listed(server.address, Tls(ca_file=second))
        assert not await _listed(server.address, Tls(ca_file=first))


async def test_mutual_tls_wants_a_certificate_of_the_clients(tmp_path: pathlib.Path) -> None:
    certificate, key = _certificate(tmp_path, "server")
    ours, our_key = _certificate(tmp_path, "client")
    tls = ServerTls(certificate, key, client_ca_file=ours)
    async with serving(dataclasses.replace(LISTEN, tls=tls)) as server:
        assert await _listed(server.address, Tls(ca_file=certificate, cert_file=ours, key_file=our_key))
        assert not await _listed(server.address, Tls(ca_file=certificate))
        assert not await _listed(server.address, Tls(ca_file=certificate, cert_file=certificate, key_file=key))


async def test_a_certificate_and_a_key_that_do_not_belong_together_are_named(tmp_path: pathlib.Path) -> None:
    certificate, _ = _certificate(tmp_path, "one")
    _, key = _certificate(tmp_path, "two")
    for tls, said in (
        (ServerTls(certificate, key), "--tls-key"),
        (ServerTls(certificate, tmp_path / "none"), "none: No such file"),
        (ServerTls(tmp_path / "none", key), "none: No such file"),
        (ServerTls(certificate, tmp_path), f"{tmp_path}: Is a directory"),
    ):
        with pytest.raises(BadSetting, match=said):
            async with serving(dataclasses.replace(LISTEN, tls=tls)):
                pass


async def test_a_bundle_for_clients_without_a_certificate_is_named(tmp_path: pathlib.Path) -> None:
    certificate, key = _certificate(tmp_path, "server")
    bundle = tmp_path / "ca.pem"
    bundle.write_text("no certificate\n")
    with pytest.raises(BadSetting, match=r"--tls-client-ca .*ca\.pem: no certificate"):
        async with serving(dataclasses.replace(LISTEN, tls=ServerTls(certificate, key, bundle))):
            pass


# -- a backend that is slow, broken, or fails in the middle -----------------------------------------------------------


class Slow(MemoryBackend):
    """Waits in listings and updates until it is let go, or fails as it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.go, self.entered = asyncio.Event(), asyncio.Event()
        self.error: Exception | None = None

    async def _wait(self) -> None:
        self.entered.set()
        await self.go.wait()
        if self.error is not None:
            raise self.error

    async def update(self, update: StatusUpdate) -> Outcome:
        await self._wait()
        return await super().update(update)

    async def listing(self, source_id: str | None) -> Listing:
        await self._wait()
        return await super().listing(source_id)


@contextlib.asynccontextmanager
async def _with(backend: Slow, **changes: Any) -> Any:
    settings = dataclasses.replace(LISTEN, **changes)
    async with Server(settings, backend) as server, aio_channel(server.address) as channel:
        yield server, Peer(aio_stub(channel))


async def test_a_backend_that_does_not_answer_is_unavailable_in_time() -> None:
    async with _with(Slow(), backend_timeout=0.1) as (server, peer):
        source_id = await peer.publish()
        for call in (peer.update(source_id), peer.listing()):
            with pytest.raises(grpc.aio.AioRpcError, match=re.escape("no answer within 0.1 s")) as failed:
                await call
            assert failed.value.code() is grpc.StatusCode.UNAVAILABLE
        page = server.telemetry.page().decode()
        assert 'mx_server_requests_total{result="unavailable",rpc="UpdateStatus"} 1.0' in page
        assert 'mx_server_backend_errors_total{backend="memory",operation="update"} 1.0' in page


async def test_a_caller_who_gives_up_is_counted_as_that(caplog: pytest.LogCaptureFixture) -> None:
    backend = Slow()
    async with _with(backend) as (server, peer):
        source_id = await peer.publish()
        backend.entered.clear()
        call = asyncio.ensure_future(peer.update(source_id))
        await backend.entered.wait()
        call.cancel()
        end = time.monotonic() + 5
        while 'result="cancelled",rpc="UpdateStatus"} 1.0' not in server.telemetry.page().decode():
            assert time.monotonic() < end
            await asyncio.sleep(0.01)
        assert not [record for record in caplog.records if record.levelname != "INFO"]


async def test_a_defect_is_internal_and_its_text_stays_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    backend = Slow()
    async with _with(backend) as (server, peer):
        backend.error = KeyError("a secret")
        backend.go.set()
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await peer.listing()
        assert failed.value.code() is grpc.StatusCode.INTERNAL
        assert "secret" not in (failed.value.details() or "")
        assert "a secret" in caplog.text
        counted = 'mx_server_requests_total{result="error",rpc="ListSources"} 1.0'
        async with asyncio.timeout(5):  # a call is counted once its answer is out
            while counted not in server.telemetry.page().decode():  # noqa: ASYNC110 - nothing tells of it
                await asyncio.sleep(0.01)


async def test_stopping_lets_calls_in_flight_finish_and_takes_no_new_ones() -> None:
    backend = Slow()
    server = Server(dataclasses.replace(LISTEN, grace=5), backend)
    await server.__aenter__()
    async with aio_channel(server.address) as channel, aio_channel(server.address) as late:
        peer, late_peer = Peer(aio_stub(channel)), Peer(aio_stub(late))
        source_id = await peer.publish()
        backend.entered.clear()
        call = asyncio.ensure_future(peer.update(source_id))
        await backend.entered.wait()
        stopping = asyncio.create_task(server.__aexit__(None, None, None))
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            while True:
                await late_peer.publish("late")
                await asyncio.sleep(0.01)
        # CANCELLED: gRPC's word for a call that had arrived but was not begun.
        assert refused.value.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
        assert not stopping.done()
        backend.go.set()
        assert (await call).success
        await asyncio.wait_for(stopping, 5)


async def test_a_call_that_never_ends_holds_up_a_stop_no_longer_than_the_grace() -> None:
    backend = Slow()
    server = Server(dataclasses.replace(LISTEN, grace=0.2, backend_timeout=60), backend)
    await server.__aenter__()
    async with aio_channel(server.address) as channel:
        peer = Peer(aio_stub(channel))
        source_id = await peer.publish()
        call = asyncio.ensure_future(peer.update(source_id))
        await asyncio.sleep(0.1)
        await asyncio.wait_for(server.__aexit__(None, None, None), 2)
        with pytest.raises(grpc.aio.AioRpcError):
            await call


async def test_a_message_above_the_cap_is_refused_and_harms_nobody() -> None:
    settings = dataclasses.replace(LISTEN, max_message_bytes=100_000)
    async with serving(settings) as server, aio_channel(server.address) as channel:
        peer = Peer(aio_stub(channel))
        await peer.ready("w1", load=0.5)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await peer.publish("w2", nixl_metadata=bytes(200_000))
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert await peer.loads() == {"w1": 0.5}


async def test_an_answer_above_the_cap_is_refused_by_name_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    settings = dataclasses.replace(LISTEN, max_message_bytes=1024)
    async with serving(settings) as server, aio_channel(server.address) as channel:
        peer = Peer(aio_stub(channel))
        for number in range(50):
            await peer.ready(f"w{number}")
        for _ in range(3):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await peer.loads()
            assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert "--max-message-bytes 1024" in str(refused.value.details())
        assert b'{result="too_large",rpc="ListSources"} 3.0' in server.telemetry.page()
        assert (await peer.ready("w1")) is not None
    said = [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")]
    assert [record.levelname for record in said] == ["WARNING"]


async def test_central_metadata_of_ninety_megabytes_goes_through_at_the_default_cap() -> None:
    async with serving(LISTEN) as server, aio_channel(server.address) as channel:
        peer = Peer(aio_stub(channel))
        source_id = await peer.publish("w1", nixl_metadata=bytes(90_000_000))
        assert (await peer.update(source_id)).success


# -- the metrics page -------------------------------------------------------------------------------------------------

PAGE = """\
# HELP mx_server_requests_total Answered calls, by result.
# TYPE mx_server_requests_total counter
mx_server_requests_total{result="ok",rpc="PublishMetadata"} 2.0
mx_server_requests_total{result="ok",rpc="ListSources"} 0.0
mx_server_requests_total{result="ok",rpc="GetMetadata"} 0.0
mx_server_requests_total{result="ok",rpc="UpdateStatus"} 1.0
mx_server_requests_total{result="refused",rpc="UpdateStatus"} 1.0
mx_server_requests_total{result="no_worker",rpc="UpdateStatus"} 1.0
mx_server_requests_total{result="other_rank",rpc="UpdateStatus"} 1.0
# HELP mx_server_backend_errors_total Operations the backend failed or did not answer in time.
# TYPE mx_server_backend_errors_total counter
# HELP mx_server_reaped_total Rows this replica marked stale or forgot.
# TYPE mx_server_reaped_total counter
mx_server_reaped_total{action="stale"} 0.0
mx_server_reaped_total{action="forgotten"} 0.0
# HELP mx_server_auth_total Calls by the verdict on their token.
# TYPE mx_server_auth_total counter
# HELP mx_build_info Which build this is.
# TYPE mx_build_info gauge
mx_build_info{backend="memory",component="server",scheme="grpc",version="VERSION"} 1.0
# HELP mx_server_backend_up Whether the last scan of the backend succeeded.
# TYPE mx_server_backend_up gauge
mx_server_backend_up{backend="memory"} 1.0
# HELP mx_server_sources Rows at the last scan, by stored status.
# TYPE mx_server_sources gauge
mx_server_sources{status="unknown"} 1.0
mx_server_sources{status="ready"} 1.0
"""


async def test_the_page() -> None:
    settings = dataclasses.replace(LISTEN, metrics_listen="127.0.0.1:0", reaper_interval=0.05)
    async with serving(settings) as server, aio_channel(server.address) as channel:
        peer = Peer(aio_stub(channel))
        source_id = await peer.publish("w1")
        await peer.publish("w2")
        await peer.update(source_id)
        await peer.update(source_id, load=float("nan"))
        await peer.update(source_id, "ghost")
        await peer.update(source_id, rank=7)
        await asyncio.sleep(0.2)
        page = await asyncio.to_thread(_get, f"http://{server.metrics_address}/metrics")
        assert await asyncio.to_thread(_get, f"http://{server.metrics_address}/healthz") == "ok\n"
    lines = [line for line in page.splitlines() if "_created" not in line and "request_duration_seconds" not in line]
    assert "\n".join(lines) + "\n" == PAGE.replace("VERSION", version())
    assert 'mx_server_request_duration_seconds_count{rpc="UpdateStatus"} 4.0' in page


def _get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=5) as answer:
        return str(answer.read().decode())
