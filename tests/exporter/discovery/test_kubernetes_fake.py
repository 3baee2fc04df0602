"""Kubernetes discovery against answers that a real API server gives on its bad days only."""

from __future__ import annotations

import dataclasses
import pathlib
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from mx_exporter.discovery import apiserver
from mx_exporter.discovery.kubernetes import KubernetesDiscovery, _pause
from mx_exporter.discovery.settings import KubernetesSettings
from mx_exporter.errors import ConfigurationError
from tests.exporter.discovery.fake_api import FakeApi, listed, raw, status

NODE = "node-a"
ENVIRON = {"NODE_NAME": NODE, "KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "6443"}


def pod(name: str, version: str = "2", **metadata: Any) -> dict[str, Any]:
    return {
        "metadata": {"namespace": "n", "name": name, "uid": f"uid-{name}", "resourceVersion": version, **metadata},
        "spec": {"nodeName": NODE, "containers": [{"resources": {"limits": {"nvidia.com/gpu": "1"}}}]},
        "status": {"phase": "Running", "podIP": "10.0.0.1"},
    }


def event(kind: str, found: dict[str, Any]) -> dict[str, Any]:
    return {"type": kind, "object": found}


@pytest.fixture
def api() -> Iterator[FakeApi]:
    with FakeApi() as api:
        api.lists = [listed(pod("a"))]
        yield api


@pytest.fixture
def discovery(api: FakeApi, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[KubernetesDiscovery]:
    """Not started. Pauses are short."""
    monkeypatch.setattr("mx_exporter.discovery.kubernetes._FIRST_PAUSE", 0.02)
    monkeypatch.setattr("mx_exporter.discovery.kubernetes._LONGEST_PAUSE", 0.2)
    token, ca = tmp_path / "token", pathlib.Path(__file__)
    token.write_text("t")
    found = KubernetesDiscovery(KubernetesSettings(NODE, api.url, token, ca))
    # Over plain HTTP no certificate is looked at; the file of the CA need only be one that can be read.
    monkeypatch.setattr("mx_exporter.discovery.apiserver.ssl.create_default_context", lambda cafile: True)
    yield found
    found.stop()


def names(discovery: KubernetesDiscovery) -> list[str]:
    return [source.pod.name for source in discovery.sources()]


def wait(condition: Callable[[], object], seconds: float = 5.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "did not come true"
        time.sleep(0.01)


def test_what_is_asked(api: FakeApi, discovery: KubernetesDiscovery) -> None:
    discovery.start()
    wait(lambda: len(api.asked) == 2)
    listing, watching = api.asked
    assert listing == {"fieldSelector": "spec.nodeName=node-a", "resourceVersion": "0"}
    seconds = int(watching.pop("timeoutSeconds"))
    assert 270 <= seconds <= 330
    assert watching == {
        "fieldSelector": "spec.nodeName=node-a",
        "watch": "true",
        "allowWatchBookmarks": "true",
        "resourceVersion": "1",
    }


def test_a_watch_goes_on_where_the_last_one_ended(api: FakeApi, discovery: KubernetesDiscovery) -> None:
    api.watches = [
        [event("ADDED", pod("b", "5"))],
        [event("BOOKMARK", {"metadata": {"resourceVersion": "9"}})],
        [event("DELETED", pod("a", "11")), "hold"],
    ]
    discovery.start()
    wait(lambda: names(discovery) == ["b"])
    versions = [asked["resourceVersion"] for asked in api.asked if "watch" in asked]
    assert versions == ["1", "5", "9"]
    assert len([asked for asked in api.asked if "watch" not in asked]) == 1


def test_a_version_that_has_expired_is_listed_anew_from_what_is_true_now(
    api: FakeApi, discovery: KubernetesDiscovery
) -> None:
    api.lists = [listed(pod("a")), listed(pod("b"), version="20")]
    api.watches = [[event("ERROR", {"kind": "Status", "code": 410, "message": "too old"})], ["hold"]]
    discovery.start()
    wait(lambda: names(discovery) == ["b"])
    assert "resourceVersion" not in api.asked[2]
    wait(lambda: len(api.asked) == 4)
    assert api.asked[3]["resourceVersion"] == "20"


BAD = {
    "no JSON": b"ADDED\n",
    "no object": b'{"type": "ADDED"}\n',
    "an object that is none": b'{"type": "ADDED", "object": 3}\n',
    "an array": b"[]\n",
    "too deep": b'{"type":' + b"[" * 100_000 + b"\n",
    "another error": b'{"type": "ERROR", "object": {"code": 500, "message": "etcd"}}\n',
    "half an event": b'{"type": "ADDED", "object": {',
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_event_ends_the_watch_and_nothing_else(
    api: FakeApi, discovery: KubernetesDiscovery, case: str, caplog: pytest.LogCaptureFixture
) -> None:
    api.watches = [[BAD[case]], [event("ADDED", pod("b")), "hold"]]
    discovery.start()
    wait(lambda: names(discovery) == ["a", "b"])
    assert "ended, which it should not" not in caplog.text


def test_a_watch_that_has_gone_silent_is_begun_anew(
    api: FakeApi, discovery: KubernetesDiscovery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of a connection may be left after a network's failure: nothing arrives, and nothing says so."""
    monkeypatch.setattr(apiserver, "_SILENCE", 0.3)
    api.watches = [["hold"], [event("ADDED", pod("b", "5")), "hold"]]
    discovery.start()
    wait(lambda: names(discovery) == ["a", "b"])
    assert [asked["resourceVersion"] for asked in api.asked if "watch" in asked][:2] == ["1", "1"]


def test_an_endless_event_is_cut_off(
    api: FakeApi, discovery: KubernetesDiscovery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apiserver, "_MAX_EVENT", 100_000)
    api.watches = [[b"x" * 60_000] * 10, [event("ADDED", pod("b")), "hold"]]
    discovery.start()
    wait(lambda: names(discovery) == ["a", "b"])


def test_a_large_pod_arrives_whole(api: FakeApi, discovery: KubernetesDiscovery) -> None:
    api.watches = [[event("ADDED", pod("b", annotations={"x": "y" * 1_500_000})), "hold"]]
    discovery.start()
    wait(lambda: names(discovery) == ["a", "b"])


@pytest.mark.parametrize(
    "reply",
    [status(500), status(503), status(429), raw(b"{"), raw(b""), raw(b'{"items": []}'), raw(b"\xff"), status(200, "")],
)
def test_a_list_that_is_none_is_asked_for_again(api: FakeApi, discovery: KubernetesDiscovery, reply: Any) -> None:
    api.lists = [reply, reply, listed(pod("b"))]
    discovery.start()
    assert discovery.age() is None
    wait(lambda: names(discovery) == ["b"])
    assert (discovery.age() or 0) < 2


def test_a_refusal_says_what_is_needed_once(
    api: FakeApi, discovery: KubernetesDiscovery, caplog: pytest.LogCaptureFixture
) -> None:
    api.lists = [status(403, '{"message": "pods is forbidden"}')]
    discovery.start()
    wait(lambda: len(api.asked) >= 4)
    said = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert len(said) == 1
    assert "the account needs list and watch on pods" in said[0]


def test_a_watch_that_ends_at_once_is_not_asked_for_in_a_row(api: FakeApi, discovery: KubernetesDiscovery) -> None:
    api.watches = [[] for _ in range(1000)]
    discovery.start()
    time.sleep(1.0)
    assert len(api.asked) < 25


def test_what_nobody_foresaw_does_not_end_it(
    api: FakeApi, discovery: KubernetesDiscovery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law 8, for our own mistakes: as long as it watches it may be wrong, once it has ended it is."""
    errors = iter([RuntimeError("odd"), KeyError("odder")])
    list_pods = apiserver.ApiServer.list_pods

    async def trouble(self: apiserver.ApiServer, *arguments: Any) -> str:
        if error := next(errors, None):
            raise error
        return await list_pods(self, *arguments)

    monkeypatch.setattr(apiserver.ApiServer, "list_pods", trouble)
    discovery.start()
    wait(lambda: names(discovery) == ["a"])


def test_a_bad_annotation_is_said_once_for_each_pod(
    api: FakeApi, discovery: KubernetesDiscovery, caplog: pytest.LogCaptureFixture
) -> None:
    bad = pod("b", annotations={"sourceload.dev/port": "x"})
    api.watches = [
        [event("ADDED", bad), event("MODIFIED", bad), event("MODIFIED", bad), event("ADDED", pod("c")), "hold"]
    ]
    discovery.start()
    wait(lambda: names(discovery) == ["a", "b", "c"])
    assert caplog.text.count("n/b: annotations sourceload.dev/*: port must be a number") == 1


def test_pauses_grow_and_differ() -> None:
    for failures, longest in ((1, 0.5), (2, 1.0), (5, 8.0), (50, 30.0)):
        found = {_pause(failures) for _ in range(50)}
        assert len(found) > 10
        assert all(longest / 2 <= pause <= longest for pause in found)


class TestLocate:
    @pytest.fixture
    def settings(self, tmp_path: pathlib.Path) -> KubernetesSettings:
        for name in ("token", "ca.crt"):
            (tmp_path / name).write_text("x")
        return KubernetesSettings(token_file=tmp_path / "token", ca_file=tmp_path / "ca.crt")

    def test_from_what_every_pod_has(self, settings: KubernetesSettings) -> None:
        assert apiserver.locate(settings, ENVIRON) == apiserver.Location("https://10.96.0.1:6443", NODE)
        six = ENVIRON | {"KUBERNETES_SERVICE_HOST": "fd00::1"}
        assert apiserver.locate(settings, six).url == "https://[fd00::1]:6443"

    @pytest.mark.parametrize(
        ("without", "said"),
        [
            ("NODE_NAME", "NODE_NAME: not set: set it from spec.nodeName through the downward API"),
            ("KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_HOST: not set: run in a pod, or use --discovery static"),
        ],
    )
    def test_what_is_missing(self, settings: KubernetesSettings, without: str, said: str) -> None:
        environ = {name: value for name, value in ENVIRON.items() if name != without}
        with pytest.raises(ConfigurationError, match=f"^{re.escape(said)}"):
            apiserver.locate(settings, environ)

    @pytest.mark.parametrize("url", ["api:6443", "https://", "https://[::1", "https://api:x", "ftp://api"])
    def test_no_address(self, settings: KubernetesSettings, url: str) -> None:
        with pytest.raises(ConfigurationError, match=f"^{re.escape(url)}: no address of an API server"):
            apiserver.locate(dataclasses.replace(settings, api_server=url), ENVIRON)

    def test_no_token(self, settings: KubernetesSettings) -> None:
        settings.token_file.unlink()
        with pytest.raises(ConfigurationError, match="token: cannot be read: run in a pod with automount"):
            apiserver.locate(settings, ENVIRON)
