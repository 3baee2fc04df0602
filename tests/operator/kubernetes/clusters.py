"""The project's own objects on a real API server, and an operator's bridge that runs against it in a thread.

The test itself stays in the main thread and injects faults there; the load loop's stand-in ticks in another one and
notes when, so that a test can say that nothing ever held it up.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import pathlib
import threading
import time
import urllib.error
from collections.abc import Collection, Iterator, Sequence
from types import TracebackType
from typing import Any

import kopf
import yaml

from mx_lab.processes import wait_until
from mx_operator.kubernetes import Bridge, Rhythm
from mx_operator.kubernetes.conditions import differ
from mx_operator.policies import Limits, SourceLoadPolicy
from tests.operator.kubernetes.proxy import Mode, Proxy
from tests.operator.kubernetes.reports import of
from tests.operator.policies.cases import policy
from tests.parts.kubernetes import ApiServer

CHART = pathlib.Path(__file__).parents[3] / "charts" / "mx-source-load"
CRD = CHART / "crd" / "sourceloadpolicies.yaml"
RULES = CHART / "rbac" / "operator.yaml"
NAMESPACE = "mx-operator-tests"
USER = f"system:serviceaccount:{NAMESPACE}:mx-operator"
PATH = "/apis/sourceload.dev/v1alpha1/sourceloadpolicies"
_BINDING = "mx-operator-tests"


def rules(*features: str) -> list[dict[str, Any]]:
    """The chart's rules for these features."""
    content = yaml.safe_load(RULES.read_text())
    return [rule for feature in features for rule in content[feature]]


class Cluster:
    """A real API server with the CRD, a service account, and the chart's rules bound to it."""

    def __init__(self, api: ApiServer) -> None:
        self.api = api
        self.token = api.service_account(NAMESPACE, "mx-operator")
        self.install_crd()
        self.grant()

    def install_crd(self) -> None:
        self.api.apply(CRD.read_text())
        wait_until(self._served, 30, "the CRD is served")

    def remove_crd(self) -> None:
        self.api.kubectl("delete", "crd", "sourceloadpolicies.sourceload.dev", "--ignore-not-found", "--timeout=30s")
        wait_until(lambda: not self._served(), 30, "the CRD is not served any more")

    def grant(self) -> None:
        """Give the account what the chart gives it."""
        account = [{"kind": "ServiceAccount", "name": "mx-operator", "namespace": NAMESPACE}]
        group = "rbac.authorization.k8s.io"
        head = {"apiVersion": f"{group}/v1", "metadata": {"name": _BINDING}}
        local = {"apiVersion": f"{group}/v1", "metadata": {"name": _BINDING, "namespace": "default"}}
        reference = {"apiGroup": group, "name": _BINDING}
        self.api.apply(
            [
                {**head, "kind": "ClusterRole", "rules": rules("policies")},
                {
                    **head,
                    "kind": "ClusterRoleBinding",
                    "subjects": account,
                    "roleRef": reference | {"kind": "ClusterRole"},
                },
                {**local, "kind": "Role", "rules": rules("events")},
                {**local, "kind": "RoleBinding", "subjects": account, "roleRef": reference | {"kind": "Role"}},
            ]
        )

    def revoke(self) -> None:
        """Take everything about policies away from the account."""
        self.api.kubectl("delete", "clusterrolebinding", _BINDING)

    def access(self, port: int | None = None) -> kopf.ConnectionInfo:
        """The operator's credentials; through a proxy where its port is given."""
        server = f"https://127.0.0.1:{port or self.api.port}"
        return kopf.ConnectionInfo(server=server, ca_path=str(self.api.ca_file), token=self.token)

    def create(self, name: str, **spec: Any) -> str:
        """Create a policy; its uid."""
        made = policy(lambda content: content.update(spec)) | {"metadata": {"name": name}}
        return str(self.api.request("POST", PATH, made)["metadata"]["uid"])

    def edit(self, name: str, **spec: Any) -> None:
        merge = "application/merge-patch+json"
        self.api.request("PATCH", f"{PATH}/{name}", {"spec": spec}, content=merge)

    def delete(self, *names: str) -> None:
        for name in names:
            self.api.request("DELETE", f"{PATH}/{name}")

    def get(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.api.request("GET", f"{PATH}/{name}")
        return found

    def exists(self, name: str) -> bool:
        try:
            self.get(name)
        except urllib.error.HTTPError as error:
            if error.code != 404:
                raise
            return False
        return True

    def condition(self, name: str, kind: str = "Ready") -> tuple[str, str] | None:
        """Status and reason of a condition as stored."""
        entries = self.get(name).get("status", {}).get("conditions", [])
        return next(((entry["status"], entry["reason"]) for entry in entries if entry["type"] == kind), None)

    def events(self, name: str) -> list[str]:
        """`Type Reason` of the Events about a policy, oldest first."""
        listed = self.api.request("GET", "/api/v1/namespaces/default/events")["items"]
        about = [event for event in listed if event["involvedObject"]["name"] == name]
        return [f"{event['type']} {event['reason']}" for event in sorted(about, key=lambda event: event["eventTime"])]

    def requests(self, since: int = 0) -> list[tuple[str, str, str, int]]:
        """What the operator asked: verb, resource, name, code; of the audit log from entry `since` on."""
        asked = []
        for entry in self.api.audit(USER)[since:]:
            about = entry.get("objectRef", {})
            resource = about.get("resource", entry["requestURI"])
            if about.get("subresource"):
                resource += f"/{about['subresource']}"
            asked.append((entry["verb"], resource, about.get("name", ""), entry["responseStatus"]["code"]))
        return asked

    def mark(self) -> int:
        """The end of the operator's audit log now, for `requests`."""
        return len(self.api.audit(USER))

    def clear(self) -> None:
        """Delete every policy."""
        with contextlib.suppress(urllib.error.HTTPError):
            self.api.request("DELETE", PATH)

    def _served(self) -> bool:
        try:
            self.api.request("GET", PATH)
        except urllib.error.HTTPError:
            return False
        return True


class Loop:
    """Stands in for the load loop: ticks ten times a second and reports a good cycle of every policy it was given."""

    def __init__(self) -> None:
        self.policies: list[SourceLoadPolicy] = []
        self.unsupported: Collection[str] = ()
        self.applied = 0
        self.changes: dict[str, dict[str, Any]] = {}  # to the reports, by policy
        self.ticks: list[float] = []

    def apply(self, policies: Sequence[SourceLoadPolicy], unsupported: Collection[str] = ()) -> None:
        self.policies, self.unsupported = list(policies), unsupported
        self.applied += 1

    async def run(self, bridge: Bridge) -> None:
        while True:
            self.ticks.append(time.monotonic())
            for each in self.policies:
                bridge.publish(of(each, at=time.time(), **self.changes.get(each.name, {})))
            await asyncio.sleep(0.1)


class Running:
    """A bridge and its load loop in a thread."""

    def __init__(self, bridge: Bridge) -> None:
        self.bridge = bridge
        self.loop = Loop()
        self.ended: BaseException | None = None
        self._stopped: float | None = None
        self._stop: asyncio.Event | None = None
        self._events: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()), daemon=True)

    def __enter__(self) -> Running:
        self._thread.start()
        wait_until(lambda: bool(self.loop.ticks), 30, "the load loop ticks")
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._stopped = time.monotonic()
        if self._thread.is_alive() and self._events is not None and self._stop is not None:
            self._events.call_soon_threadsafe(self._stop.set)
        self._thread.join(15)
        assert not self._thread.is_alive(), "the bridge did not stop"
        if self.ended is not None:
            raise self.ended

    async def _main(self) -> None:
        self._events, self._stop = asyncio.get_running_loop(), asyncio.Event()
        tasks = [asyncio.create_task(self.bridge.run(self.loop)), asyncio.create_task(self.loop.run(self.bridge))]
        stopped = asyncio.create_task(self._stop.wait())
        await asyncio.wait([*tasks, stopped], return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task.done():
                self.ended = task.exception() or RuntimeError("ended by itself")
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def names(self) -> set[str]:
        """The policies that run."""
        return {each.name for each in self.loop.policies}

    def policy(self, name: str) -> SourceLoadPolicy:
        return next(each for each in self.loop.policies if each.name == name)

    def wait_for(self, *names: str, timeout: float = 30) -> None:
        """Until exactly these policies run."""
        wait_until(lambda: self.names() == set(names), timeout, f"policies {names} run (now {self.names()})")

    def wait_for_watch(self, *names: str) -> None:
        """Until exactly these policies run and a watch follows them (a list may have been quicker)."""
        self.wait_for(*names)
        wait_until(lambda: self.bridge.health().events >= len(names), 30, "the watch has listed")
        time.sleep(0.3)

    def told(self, name: str) -> bool:
        """Whether the stored status is the newest news, so that no patch is under way or due before long."""
        board = self.bridge._boards[self.policy(name).uid]
        pending = [each for each in board._now.by_kind.values() if each.pending is not None]
        return bool(board._stored.by_kind) and not differ(board._stored, board._now) and not pending

    def list_now(self) -> None:
        """Let the bridge list all policies, as it does by itself every few minutes."""
        assert self._events is not None
        self._events.call_soon_threadsafe(self.bridge._relist.set)

    def longest_pause(self) -> float:
        """The longest time that the load loop did not tick, in seconds; the time since its last tick counts."""
        times = [*self.loop.ticks, self._stopped or time.monotonic()]
        return max(later - earlier for earlier, later in itertools.pairwise(times))


@contextlib.contextmanager
def running(
    cluster: Cluster, way: Proxy | None = None, rhythm: Rhythm | None = None, limits: Limits | None = None
) -> Iterator[Running]:
    """A bridge that runs against the cluster, through a proxy where there is one."""
    quick = rhythm or Rhythm(relist=300.0, look=0.1, pause=0.2, longest=1.0, timeout=3.0)
    port = way.port if way is not None else None
    bridge = Bridge(access=lambda: cluster.access(port), rhythm=quick, limits=limits, instance="mx-operator-0")
    with Running(bridge) as started:
        try:
            yield started
        finally:
            if way is not None:  # a TLS goodbye to somebody who never answers would outlive the loop
                way.mode = Mode.PASS
                way.cut()
                time.sleep(0.2)
