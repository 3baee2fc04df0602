"""Whose calls are taken: pure judgement, memory of verdicts, and a real cluster's TokenReview through the wire."""

from __future__ import annotations

import asyncio
import dataclasses
import pathlib
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from mx_server.auth import Guard, account, bearer
from mx_server.errors import BackendUnavailable
from mx_server.settings import Kubernetes, Security, Settings
from mx_wire import SERVICE, ListSourcesRequest, TokenFile, aio_channel, aio_stub
from tests.parts.kubernetes import ApiServer
from tests.server.conftest import serving

SECURITY = Security(("modelexpress",), frozenset({"ns:ok"}), 60)


def _review(
    name: str = "system:serviceaccount:ns:ok", audiences: tuple[str, ...] = ("modelexpress",)
) -> dict[str, Any]:
    return {"status": {"authenticated": True, "audiences": list(audiences), "user": {"username": name}}}


@pytest.mark.parametrize(
    ("metadata", "token"),
    [
        ([("authorization", "Bearer abc")], "abc"),
        ([("authorization", "bEARER abc ")], "abc"),
        ([("authorization", "Basic abc")], None),
        ([("authorization", "Bearer ")], None),
        ([("authorization", b"Bearer abc")], None),
        ([("other", "Bearer abc")], None),
        ([], None),
    ],
)
def test_bearer(metadata: list[tuple[str, str | bytes]], token: str | None) -> None:
    assert bearer(metadata) == token


@pytest.mark.parametrize(
    ("review", "expected"),
    [
        (_review(), "ns:ok"),
        (_review(audiences=("other", "modelexpress")), "ns:ok"),
        (_review(audiences=("other",)), None),
        (_review(audiences=()), None),
        (_review("system:node:a"), None),
        (_review("system:serviceaccount::ok"), None),
        (_review("system:serviceaccount:ns:"), None),
        (_review("x:system:serviceaccount:ns:ok"), None),
        ({"status": {"authenticated": False, "error": "expired"}}, None),
        ({}, None),
    ],
)
def test_account(review: dict[str, Any], expected: str | None) -> None:
    assert account(review, ("modelexpress",)) == expected


class Cluster:
    """Answers reviews, slowly enough that questions can meet."""

    def __init__(self, **names: str) -> None:
        self.names, self.asked, self.down = names, 0, False

    async def request(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        self.asked += 1
        await asyncio.sleep(0)
        if self.down:
            raise BackendUnavailable("down")
        name = self.names.get(body["spec"]["token"])
        return _review(f"system:serviceaccount:{name}") if name else {"status": {}}


async def _code(guard: Guard, token: str | None) -> grpc.StatusCode | None:
    denial = await guard.denial(token)
    return None if denial is None else denial.code


async def test_verdicts_are_remembered_and_asked_again_later() -> None:
    now = 0.0
    cluster = Cluster(good="ns:ok", other="ns:other")
    guard = Guard(cluster, SECURITY, lambda: now)
    expected = {
        "good": None,
        "other": grpc.StatusCode.PERMISSION_DENIED,
        "bad": grpc.StatusCode.UNAUTHENTICATED,
    }
    for _ in range(3):
        for token, code in expected.items():
            assert await _code(guard, token) is code
    assert cluster.asked == 3
    assert await _code(guard, None) is grpc.StatusCode.UNAUTHENTICATED
    now = 61.0
    assert await _code(guard, "good") is None
    assert cluster.asked == 4


async def test_a_cluster_that_is_down_is_unavailable_and_not_remembered() -> None:
    cluster = Cluster(good="ns:ok")
    guard = Guard(cluster, SECURITY)
    cluster.down = True
    assert await _code(guard, "good") is grpc.StatusCode.UNAVAILABLE
    cluster.down = False
    assert await _code(guard, "good") is None


async def test_many_calls_with_one_token_ask_once_even_if_the_first_is_cancelled() -> None:
    cluster = Cluster(good="ns:ok")
    guard = Guard(cluster, SECURITY)
    calls = [asyncio.create_task(_code(guard, "good")) for _ in range(50)]
    await asyncio.sleep(0)
    calls[0].cancel()
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(results[0], asyncio.CancelledError)
    assert results[1:] == [None] * 49
    assert cluster.asked == 1


async def test_a_flood_of_made_up_tokens_does_not_grow_the_memory() -> None:
    guard = Guard(Cluster(good="ns:ok"), SECURITY)
    for number in range(5000):
        await guard.denial(f"made up {number}")
    assert len(guard._known) <= 4096
    assert await _code(guard, "good") is None


@pytest.mark.tools("etcd", "kube-apiserver")
async def test_a_real_cluster_judges_tokens(cluster: Kubernetes, api_server: ApiServer, tmp_path: pathlib.Path) -> None:
    tokens = {
        "good": api_server.service_account("auth-a", "worker", "modelexpress"),
        "other account": api_server.service_account("auth-a", "stranger", "modelexpress"),
        "other audience": api_server.service_account("auth-a", "worker", "something-else"),
        "nonsense": "abc.def.ghi",
    }
    expected = {
        "good": None,
        "other account": grpc.StatusCode.PERMISSION_DENIED,
        "other audience": grpc.StatusCode.UNAUTHENTICATED,
        "nonsense": grpc.StatusCode.UNAUTHENTICATED,
        "none": grpc.StatusCode.UNAUTHENTICATED,
    }
    security = Security(("modelexpress",), frozenset({"auth-a:worker"}))
    settings = Settings(listen="127.0.0.1:0", kubernetes=cluster, security=security)
    async with serving(settings) as server:
        for who, code in expected.items():
            file = tmp_path / "token"
            file.write_text(tokens.get(who, ""))
            async with aio_channel(server.address, tokens=TokenFile(file)) as channel:
                assert await _called(channel) is code, who
        async with aio_channel(server.address) as channel:
            answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=SERVICE))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING, "health needs no token"
        page = server.telemetry.page().decode()
        assert 'mx_server_auth_total{verdict="allowed"} 1.0' in page
        assert 'mx_server_auth_total{verdict="unauthenticated"} 3.0' in page


async def test_a_cluster_that_cannot_be_reached_is_unavailable(tmp_path: pathlib.Path) -> None:
    nowhere = Kubernetes("", "http://127.0.0.1:9")
    settings = Settings(listen="127.0.0.1:0", kubernetes=nowhere, security=SECURITY)
    token = tmp_path / "token"
    token.write_text("abc")
    async with (
        serving(dataclasses.replace(settings)) as server,
        aio_channel(server.address, tokens=TokenFile(token)) as channel,
    ):
        assert await _called(channel) is grpc.StatusCode.UNAVAILABLE


async def _called(channel: grpc.aio.Channel) -> grpc.StatusCode | None:
    try:
        await aio_stub(channel).ListSources(ListSourcesRequest())
    except grpc.aio.AioRpcError as error:
        return error.code()
    return None
