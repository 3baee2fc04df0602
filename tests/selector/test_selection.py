"""`select_sources` and attempts: the funnel, every client it takes, what is recorded, and that nothing raises."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Iterator, Sequence
from typing import Any

import grpc
import pytest

import mx_selector
from mx_selector import Selection, Target, select_from, select_sources, telemetry
from mx_selector.attempts import Attempt
from mx_selector.telemetry import events
from mx_selector.telemetry.families import Update
from mx_selector.telemetry.recorder import Recorder
from mx_wire import (
    MxSourceType,
    P2pServiceStub,
    SourceIdentity,
    SourceStatus,
    channel,
)
from tests.parts import released
from tests.selector.rows import ids, row, rows
from tests.selector.servers import Servicer, serving

IDENTITY = SourceIdentity(model_name="m", dtype="bfloat16")
TARGET = Target("m", "t", 0, "cuda")


class Record:
    """A sink that keeps what it was told, as `name{labels} value`."""

    def __init__(self) -> None:
        self.updates: list[Update] = []

    def record(self, updates: Sequence[Update]) -> None:
        self.updates += updates

    def lines(self, prefix: str = "") -> list[str]:
        def line(u: Update) -> str:
            labels = ",".join(f"{n}={v}" for n, v in zip(u.family.labels, u.labels, strict=False) if n != "scheme")
            return f"{u.family.name}{{{labels}}}"

        return [line(u) for u in self.updates if u.family.name.startswith(prefix)]


@pytest.fixture
def record(monkeypatch: pytest.MonkeyPatch) -> Record:
    sink = Record()
    labels = events.Labels(now=lambda: 1_000.0)
    monkeypatch.setattr(telemetry, "_recorder", Recorder([sink], labels))
    return sink


class Client:
    """Anything with ListSources."""

    def __init__(self, instances: Sequence[Any] = (), error: Exception | None = None) -> None:
        self.instances, self.error = instances, error
        self.requests: list[Any] = []

    def ListSources(self, request: Any, timeout: float) -> Any:
        self.requests.append((request, timeout))
        if self.error:
            raise self.error
        return types.SimpleNamespace(instances=self.instances)


@pytest.fixture
def served() -> Iterator[tuple[Servicer, str]]:
    with serving(rows([0.9, 0.0])) as running:
        yield running


MIXED = [
    row("idle", 0.0, accelerator="cuda"),
    row("busy", 0.95, accelerator="cuda"),
    row("untold", 0.4),
    row("amd", 0.0, accelerator="rocm"),
    row("other-rank", 0.0, worker_rank=1, accelerator="cuda"),
]


def test_only_ready_sources_of_the_rank_and_accelerator_are_ranked() -> None:
    client = Client(MIXED)
    selection = select_sources(client, IDENTITY, TARGET, policy="load_aware")
    assert set(ids(selection)) == {"idle", "busy", "untold"}
    assert selection.funnel == mx_selector.model.Funnel(5, 4, 3)
    assert selection.policy == "load_aware"
    request, timeout = client.requests[0]
    assert (request.identity, request.status_filter) == (IDENTITY, SourceStatus.SOURCE_STATUS_READY)
    assert timeout == 30.0


def test_three_sources_by_default_or_as_many_as_asked_for() -> None:
    client = Client(rows([i / 10 for i in range(8)]))
    full = select_sources(client, IDENTITY, TARGET, policy="headroom", limit=None)
    assert len(full) == 8
    assert list(select_sources(client, IDENTITY, TARGET, policy="headroom")) == list(full[:3])
    assert select_sources(client, IDENTITY, TARGET, policy="headroom", limit=5)[4] is full[4]


def test_the_policy_is_the_environments_and_random_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    assert select_sources(Client(), IDENTITY, TARGET).policy == "random"
    monkeypatch.setenv("MX_P2P_SOURCE_SELECTOR", "headroom")
    assert select_sources(Client(), IDENTITY, TARGET).policy == "headroom"
    monkeypatch.setenv("MX_P2P_SOURCE_SELECTOR", "typo")
    assert select_sources(Client(), IDENTITY, TARGET).policy == "random", "the label names what ran"


def test_our_stub_lists_from_a_server(served: tuple[Servicer, str]) -> None:
    servicer, address = served
    with channel(address) as connection:
        selection = select_sources(P2pServiceStub(connection), IDENTITY, TARGET, policy="load_aware")
    assert ids(selection) == ["w1", "w0"]
    assert servicer.requests[0].identity == IDENTITY


@pytest.mark.released
def test_the_released_clients_identity_and_stub_work_in_any_pairing(served: tuple[Servicer, str]) -> None:
    servicer, address = served
    pb2 = released.module("p2p_pb2")
    sys_modules = __import__("sys").modules
    sys_modules.setdefault("p2p_pb2", pb2)
    theirs = pb2.SourceIdentity.FromString(IDENTITY.SerializeToString())
    with channel(address) as connection:
        their_stub = released.module("p2p_pb2_grpc").P2pServiceStub(connection)

        class MxClient:
            def list_sources(self, identity: Any = None, status_filter: Any = None) -> Any:
                return their_stub.ListSources(
                    pb2.ListSourcesRequest(identity=identity, status_filter=status_filter), timeout=5
                )

        pairs = [(P2pServiceStub(connection), theirs), (their_stub, theirs), (MxClient(), theirs)]
        for client, identity in pairs:
            selection = select_sources(client, identity, TARGET, policy="load_aware")
            assert ids(selection) == ["w1", "w0"], (client, selection.error)
    assert all(request.identity == IDENTITY for request in servicer.requests)


@pytest.mark.parametrize("client", [Client(error=grpc.RpcError("down")), Client(error=ValueError("x")), object(), None])
def test_no_listing_is_an_empty_selection_that_says_why(client: Any, record: Record) -> None:
    selection = select_sources(client, IDENTITY, TARGET)
    assert not selection
    assert selection.error
    assert record.lines() == ["mx_p2p_list_sources{policy=random,result=error}"]


def test_a_server_that_is_not_there_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    with channel("127.0.0.1:1") as connection:
        selection = select_sources(P2pServiceStub(connection), IDENTITY, TARGET, timeout=2)
    assert selection.error.startswith("UNAVAILABLE: ")
    assert "\n" not in caplog.records[-1].getMessage()


def test_rows_that_nobody_could_filter_are_an_empty_selection_too(record: Record) -> None:
    selection = select_from(None, IDENTITY, TARGET)  # type: ignore[arg-type]
    assert not selection
    assert "TypeError" in selection.error


def test_an_asyncio_stub_is_told_what_to_do_instead(record: Record) -> None:
    class AsyncClient:
        async def ListSources(self, request: Any, timeout: float) -> Any:
            raise AssertionError("nobody awaits this")

    assert "select_from" in select_sources(AsyncClient(), IDENTITY, TARGET).error


def test_a_policy_without_a_name_still_selects(record: Record) -> None:
    class Nameless:
        def order(self, candidates: Any, target: Target) -> Any:
            return list(candidates)

    selection = select_from(iter(rows([0.1, 0.2])), IDENTITY, Target("m", "t"), policy=Nameless())  # type: ignore[arg-type]
    assert (selection.policy, len(selection)) == ("Nameless", 2)


def test_an_empty_listing_is_told_apart(record: Record) -> None:
    assert not select_sources(Client(), IDENTITY, TARGET).error
    assert record.lines("mx_p2p_list") == ["mx_p2p_list_sources{policy=random,result=empty}"]
    stages = [u.value for u in record.updates if u.family.name == "mx_p2p_candidates"]
    assert stages == [0, 0, 0]


def test_a_selection_records_its_funnel_its_time_and_the_first_sources_load(record: Record) -> None:
    select_from([row("w", 0.25, updated_at=990_000)], IDENTITY, Target("m", "t"), policy="headroom")
    assert record.lines() == [
        "mx_p2p_list_sources{policy=headroom,result=ok}",
        "mx_p2p_candidates{policy=headroom,stage=listed}",
        "mx_p2p_candidates{policy=headroom,stage=rank_matched}",
        "mx_p2p_candidates{policy=headroom,stage=accelerator_matched}",
        "mx_p2p_source_selection_seconds{policy=headroom}",
        "mx_selector_chosen_load{policy=headroom}",
        "mx_selector_chosen_load_age_seconds{policy=headroom}",
        "mx_p2p_source_load{}",
        "mx_p2p_source_load{}",
    ]
    by_name = {u.family.name: u.value for u in record.updates}
    assert by_name["mx_selector_chosen_load_age_seconds"] == 10.0
    assert (by_name["mx_selector_chosen_load"], by_name["mx_p2p_source_load"]) == (0.25, 0.25)


def test_an_unknown_load_is_counted_not_invented(record: Record) -> None:
    select_from([row("w", updated_at=990_000)], IDENTITY, Target("m", "t"), policy="headroom")
    assert record.lines("mx_selector") == ["mx_selector_chosen_unknown{policy=headroom}"]
    assert [u.value for u in record.updates if u.family.name == "mx_p2p_source_load"] == [None]


def test_a_fallback_is_counted_by_kind_of_error(record: Record) -> None:
    class Broken:
        name = "broken"

        def order(self, candidates: Any, target: Target) -> Any:
            raise ZeroDivisionError

    selection = select_from(rows([0.1, 0.2]), IDENTITY, Target("m", "t"), policy=Broken())
    assert len(selection) == 2
    assert record.lines("mx_selector_fallbacks") == ["mx_selector_fallbacks{policy=broken,reason=ZeroDivisionError}"]


class TransferError(Exception):
    pass


def attempt(last: bool) -> Attempt:
    ticks = iter(range(100))
    return Attempt(row("w", 0.5), "headroom", last=last, clock=lambda: float(next(ticks)))


def test_a_pull_that_succeeds(record: Record) -> None:
    with attempt(last=False) as pull:
        pass
    assert pull.seconds == 1.0
    assert record.lines() == [
        "mx_p2p_source_attempts{policy=headroom,result=success}",
        "mx_p2p_source_selections{policy=headroom}",
        "mx_p2p_transfer_seconds{policy=headroom,outcome=success}",
    ]


@pytest.mark.parametrize(
    ("last", "error", "result"),
    [
        (False, TransferError, "retry"),
        (True, TransferError, "fallback"),
        (False, KeyboardInterrupt, "fallback"),
        (False, GeneratorExit, "fallback"),
    ],
)
def test_a_pull_that_raises_passes_on_what_it_raised(
    last: bool, error: type[BaseException], result: str, record: Record
) -> None:
    with pytest.raises(error), attempt(last):
        raise error
    assert record.lines() == [
        f"mx_p2p_source_attempts{{policy=headroom,result=transfer_{result}}}",
        "mx_p2p_source_selections{policy=headroom}",
        f"mx_p2p_transfer_seconds{{policy=headroom,outcome={result}}}",
    ]


def test_a_pull_that_failed_without_an_exception(record: Record) -> None:
    with attempt(last=True) as pull:
        pull.failed()
    assert "result=transfer_fallback" in record.lines()[0]


def test_a_metadata_lookup_that_raises_is_a_miss_and_no_transfer(record: Record) -> None:
    pull = attempt(last=False)
    with pytest.raises(TransferError), pull, pull.metadata():
        raise TransferError
    assert record.lines() == [
        "mx_p2p_source_attempt_phase_seconds{policy=headroom,phase=metadata,outcome=error}",
        "mx_p2p_metadata_lookup_failures{policy=headroom}",
        "mx_p2p_source_attempts{policy=headroom,result=metadata_miss}",
    ]
    assert pull.seconds is None


@pytest.mark.parametrize("verdict", ["missing", "incompatible"])
def test_no_transfer_is_counted_where_none_was_started(verdict: str, record: Record) -> None:
    with attempt(last=False) as pull:
        getattr(pull, verdict)()
    assert record.lines() == [
        f"mx_p2p_source_attempts{{policy=headroom,result={'metadata_miss' if verdict == 'missing' else verdict}}}"
    ]


def test_the_transfers_time_starts_after_the_metadata(record: Record) -> None:
    with attempt(last=False) as pull:  # 0
        with pull.metadata():  # 1, 2
            pass  # transfer from 3
        with pull.phase("receive"):  # 4, 5
            pass
        with pull.phase("gossip"):  # 6, 7: no phase of a pull
            pass
    assert pull.seconds == 5.0  # to 8
    assert [line for line in record.lines() if "phase=" in line] == [
        "mx_p2p_source_attempt_phase_seconds{policy=headroom,phase=metadata,outcome=ok}",
        "mx_p2p_source_attempt_phase_seconds{policy=headroom,phase=receive,outcome=ok}",
    ]


def test_the_documented_loop_retries_and_falls_back(record: Record) -> None:
    selection = select_from(rows([0.0, 0.1, 0.2]), IDENTITY, Target("m", "t"), policy="load_aware")
    for source in selection:
        with contextlib.suppress(TransferError), selection.attempt(source):
            raise TransferError
    results = record.lines("mx_p2p_source_attempts")
    assert [line.rpartition("=")[2] for line in results] == ["transfer_retry}", "transfer_retry}", "transfer_fallback}"]


def test_a_foreign_source_is_the_last_one(record: Record) -> None:
    with pytest.raises(TransferError), Selection((row("a"),), "random").attempt(row("a")):
        raise TransferError
    assert "transfer_fallback" in record.lines()[0]


def test_with_the_source_label_each_candidate_is_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sink = Record()
    monkeypatch.setattr(telemetry, "_recorder", Recorder([sink], events.Labels(by_source=True)))
    selection = select_from(rows([0.5, None]), IDENTITY, Target("m", "t"), policy="load_aware")
    with selection.attempt(selection[0]):
        pass
    assert "mx_p2p_source_load{source_worker_id=w0}" in sink.lines()
    assert sink.lines("mx_p2p_source_selections") == ["mx_p2p_source_selections{policy=load_aware,source_worker_id=w0}"]


class Failing:
    calls = 0

    def record(self, updates: Sequence[Update]) -> None:
        self.calls += 1
        raise OSError("disk full")


def test_a_sink_that_fails_is_dropped_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    failing, sound = Failing(), Record()
    monkeypatch.setattr(telemetry, "_recorder", Recorder([failing, sound]))
    for _ in range(2):
        assert select_from(rows([0.5]), IDENTITY, Target("m", "t"))
    assert failing.calls == 1
    assert len(sound.lines("mx_p2p_list")) == 2


WEIGHTS, LORA = MxSourceType.MX_SOURCE_TYPE_WEIGHTS, MxSourceType.MX_SOURCE_TYPE_LORA


@pytest.mark.released
def test_accelerators_fit_as_in_the_released_client(monkeypatch: pytest.MonkeyPatch) -> None:
    payload = released.module("metadata.payload")
    families = ("", "cuda", "xpu", "rocm")
    for kind in (WEIGHTS, LORA):
        for quantization in ("", "none", " None ", "fp8"):
            for dtype in ("bfloat16", "torch.float16", "auto", "int8", ""):
                identity = SourceIdentity(mx_source_type=kind, quantization=quantization, dtype=dtype)
                for target in families:
                    for source in families:
                        for known in (False, True):
                            expected = payload.accelerators_compatible(
                                target,
                                source,
                                mx_source_type=kind,
                                quantization=quantization,
                                dtype=dtype,
                                defer_unknown=not known,
                            )
                            ours = mx_selector.compatible(target, source, identity, known=known)
                            assert ours == expected, (target, source, identity, known)


def test_without_an_identity_only_one_family_fits() -> None:
    assert mx_selector.compatible("cuda", "cuda", None)
    assert mx_selector.compatible("cuda", "", None)
    assert not mx_selector.compatible("cuda", "xpu", None)
