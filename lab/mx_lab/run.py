"""One run of the lab, from the first process to the verdict; called by the door and by tests.

The world (NICs, engines, sources, targets) lives in this process' event loop; the real parts are child processes.
Children are started in the main thread, waited for in others, and stopped whatever happens.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import pathlib
import random
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from typing import Any, Final

import grpc

import mx_wire
from mx_lab import hops, show
from mx_lab.engines import Engines
from mx_lab.fleet import EXPORTER_PORT, Busy, Fleet, make_fleet
from mx_lab.parts import Parts, answers
from mx_lab.processes import Process, stopping
from mx_lab.results import Evidence, Hop, PolicyResult, Verdict, judge, policy_results
from mx_lab.settings import Settings
from mx_lab.sources import IDENTITY, Sources
from mx_lab.sysfs import NodeSysfs
from mx_lab.targets import Targets
from mx_lab.traffic import Nic

STAYING: Final = "staying"
_TICK: Final = 0.02
_LOOK: Final = 0.5  # seconds between looks at the listing

Show = Callable[[str, Sequence[show.SourceNow]], None]
Say = Callable[[str], None]


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a run gives."""

    results: list[PolicyResult]
    hops: list[Hop]
    followed: str
    evidence: Evidence
    verdict: Verdict


class Lab:
    """The state of one run."""

    def __init__(
        self,
        settings: Settings,
        folder: pathlib.Path,
        processes: list[Process],
        display: Show,
        say: Say = lambda _: None,
    ) -> None:
        self.settings, self.display, self._say = settings, display, say
        network = random.Random().randrange(16, 250)  # so that two labs on one machine do not meet
        self.fleet: Fleet = make_fleet(
            settings.sources, settings.nodes, settings.busy_nic, settings.busy_kv, network, settings.seed
        )
        self.nics = {source.name: Nic(source) for source in self.fleet}
        self.sysfs = [
            NodeSysfs(folder / f"node-{node.number}" / "sys", [self.nics[s.name] for s in node.sources])
            for node in self.fleet.nodes
        ]
        self.parts = Parts(settings, self.fleet, folder, processes)
        self.targets: Targets | None = None
        self.rows: dict[str, mx_wire.SourceInstanceRef] = {}
        self.phase = "starting"

    async def run(self, finished: Callable[[Outcome], None]) -> Outcome:
        """Start everything, wait for loads, start the targets, look back; `finished` is called while all still runs."""
        async with self.up():
            self._say(f"look: {self.parts.links()}")
            await self._warm_up()
            self.targets = Targets(self.settings, self.fleet, self.nics, self.parts.addresses.server)
            self.phase = "targets start"
            try:
                await self.targets.run()
                self.phase = "looking back"
                outcome = await self._look_back()
                finished(outcome)
                if self.settings.stay:
                    await self._stay()
                return outcome
            finally:
                self.targets.close()

    @contextlib.asynccontextmanager
    async def up(self) -> AsyncIterator[None]:
        """Everything but the targets runs inside this block; the children are the caller's to stop."""
        address = self.parts.addresses.selector_metrics.rpartition(":")[2]
        os.environ.update(MX_METRICS_ENABLED="1", MX_METRICS_PORT=address)  # the targets' own metrics
        async with contextlib.AsyncExitStack() as stack:
            engines = Engines(self.fleet, self.nics)
            await engines.start()
            stack.push_async_callback(engines.stop)
            await stack.enter_async_context(_background(self._world()))
            await self._start_parts()
            channel = await stack.enter_async_context(mx_wire.aio_channel(self.parts.addresses.server))
            sources = Sources(self.fleet, channel, self.settings.heartbeat, self.settings.seed)
            await stack.enter_async_context(_background(sources.run()))
            await stack.enter_async_context(_background(self._watch(channel)))
            yield

    async def _stay(self) -> None:
        """Until somebody interrupts; that is no failure any more."""
        self.phase = STAYING
        self._say(f"everything goes on until Ctrl-C; look: {self.parts.links()}")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            task = asyncio.current_task()
            assert task is not None
            task.uncancel()

    async def _start_parts(self) -> None:
        waits = [(self.parts.server(), self.parts.server_ready)]
        if "exporter" not in self.settings.without:
            for node, sysfs in zip(self.fleet.nodes, self.sysfs, strict=True):
                exporter = self.parts.exporter(node, sysfs.root)
                waits.append((exporter, lambda ip=node.ip: answers(f"{ip}:{EXPORTER_PORT}", "/metrics")))  # type: ignore[misc]
        addresses = self.parts.addresses
        waits.append((self.parts.prometheus(), lambda: answers(addresses.prometheus, "/-/ready")))
        if "operator" not in self.settings.without:
            waits.append((self.parts.operator(), lambda: answers(addresses.operator, "/healthz")))
        for process, ready in waits:
            self.phase = f"waiting for {process.name}"
            await asyncio.to_thread(process.wait_ready, ready, 60)

    async def _world(self) -> None:
        """Advance the hardware for ever."""
        now = time.monotonic()
        while True:
            await asyncio.sleep(_TICK)
            before, now = now, time.monotonic()
            for nic in self.nics.values():
                ended = nic.advance(before, now - before)
                if ended and self.targets is not None:
                    self.targets.pulls_ended(ended)
            for sysfs in self.sysfs:
                sysfs.write()

    async def _watch(self, channel: grpc.aio.Channel) -> None:
        """Look at the listing, and show it, for ever."""
        stub = mx_wire.aio_stub(channel)
        ready = mx_wire.SourceStatus.SOURCE_STATUS_READY
        while True:
            with contextlib.suppress(grpc.aio.AioRpcError):
                listing = await stub.ListSources(
                    mx_wire.ListSourcesRequest(identity=IDENTITY, status_filter=ready), timeout=2
                )
                self.rows = {row.worker_id: row for row in listing.instances}
            self.display(self._phase_text(), self._now())
            await asyncio.sleep(_LOOK)

    async def _warm_up(self) -> None:
        """Wait until every source is listed and every busy one's load is, or until that should long have happened."""
        busy = {source.worker_id for source in self.fleet if source.busy is not Busy.NO}
        end = time.monotonic() + self.settings.warm_up
        self.phase = "waiting for loads to arrive at the server"
        while time.monotonic() < end:
            loaded = {worker for worker, row in self.rows.items() if mx_wire.read_load(row) is not None}
            if len(self.rows) == self.settings.sources and loaded and busy <= loaded:
                return
            await asyncio.sleep(0.2)

    async def _look_back(self) -> Outcome:
        assert self.targets is not None
        followed = next((s for s in self.fleet if s.busy is Busy.NIC), next(iter(self.fleet)))
        addresses = self.parts.addresses
        way = await asyncio.to_thread(
            hops.follow, followed, self.fleet, self.sysfs[followed.node].root, addresses.prometheus, addresses.server
        )
        evidence = await asyncio.to_thread(self._evidence)
        results = policy_results(self.fleet, self.targets.choices, self.targets.transfers)
        return Outcome(results, way, followed.name, evidence, judge(results, self.fleet.busy_share, evidence))

    def _evidence(self) -> Evidence:
        assert self.targets is not None
        running = Counter(process.name.rpartition("-")[0] for process in self.parts.processes if process.running)

        def asked(expression: str) -> float | None:
            answer = hops.query(self.parts.addresses.prometheus, expression)
            return answer[0][1] if answer else None

        return Evidence(
            rows=len(self.rows),
            rows_with_load=sum(mx_wire.read_load(row) is not None for row in self.rows.values()),
            series=int(asked("count(mx_source_load)") or 0),
            operator_running=any(p.name == "mx-operator" and p.running for p in self.parts.processes),
            exporters_running=running["mx-exporter"],
            writes_accepted=asked('sum(mx_operator_writes_total{result="accepted"})'),
            load_supported=asked("min(mx_operator_load_supported)"),
            errors=tuple(dict.fromkeys(self.targets.errors)),
        )

    def _phase_text(self) -> str:
        if self.targets is None or not self.phase.startswith("targets"):
            return self.phase
        started = sum(choice.policy == "load_aware" for choice in self.targets.choices)
        return f"{started:,} of {self.settings.starts:,} targets started"

    def _now(self) -> list[show.SourceNow]:
        now, wall = time.monotonic(), time.time()
        choices = self.targets.choices if self.targets is not None else []
        chosen = Counter((choice.source, choice.policy) for choice in choices)
        table = []
        for source in self.fleet:
            row, nic = self.rows.get(source.worker_id), self.nics[source.name]
            table.append(
                show.SourceNow(
                    source,
                    nic.serving(now),
                    nic.kv(now),
                    mx_wire.read_load(row) if row is not None else None,
                    wall - row.updated_at / 1000 if row is not None else None,
                    {policy: count for (name, policy), count in chosen.items() if name == source.name},
                )
            )
        return table


@contextlib.asynccontextmanager
async def _background(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run a coroutine beside the block; its failure cancels the block and is what is raised."""
    async with asyncio.TaskGroup() as group:
        task = group.create_task(work)
        yield
        task.cancel()


async def run(settings: Settings, display: Show, say: Say, finished: Callable[[Outcome], None]) -> Outcome:
    """Run the lab once.

    Args:
        settings: What is asked for.
        display: Takes the state of the fleet, twice a second.
        say: Takes lines for the person who watches.
        finished: Takes what came of it, while everything still runs.

    Raises:
        ProcessError: A part did not start.
        ValueError: The settings make no fleet.
    """
    with _folder(settings.keep) as folder, stopping([]) as processes:
        lab = Lab(settings, folder, processes, display, say)
        try:
            return await lab.run(finished)
        except BaseExceptionGroup as group:
            raise _first(group) from group
        finally:
            for sysfs in lab.sysfs:
                sysfs.close()


@contextlib.contextmanager
def _folder(keep: pathlib.Path | None) -> Iterator[pathlib.Path]:
    """The folder of the parts' files: the one that is to be kept, or one that is gone afterwards."""
    if keep is not None:
        yield keep.resolve()
        return
    with tempfile.TemporaryDirectory(prefix="mx-lab-") as folder:
        yield pathlib.Path(folder)


def _first(error: BaseException) -> BaseException:
    """What happened first, out of the groups that the background tasks wrap it in."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
