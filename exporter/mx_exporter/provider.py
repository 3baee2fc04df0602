"""The same number inside a worker's own process, so that it can publish its load itself on its heartbeat.

    publisher = HeartbeatPublisher(..., source_load_provider=make_source_load_provider(device_id))

`make_source_load_provider` keeps the calling convention of the released client's function of that name: a callable that
returns a float in [0, 1], or None when nothing is known, which leaves the field unset. It samples in a thread of its
own about once a second, so that the number on a 30 s heartbeat is of the last seconds and not of the whole heartbeat.
Neither OpenTelemetry nor a web server is imported.
"""

from __future__ import annotations

import logging
import os
import pathlib
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from mx_exporter.blend import blend
from mx_exporter.mapping.assignments import assign
from mx_exporter.mapping.places import host_gpus, place
from mx_exporter.model import Endpoint, Gpu, Place, Pod, Source, Usage
from mx_exporter.nics.sampler import NicSampler
from mx_exporter.nics.sysfs import Tree
from mx_exporter.nics.tracks import Timing

if TYPE_CHECKING:
    from mx_exporter.engines import Engines

_LOG = logging.getLogger("mx_exporter")
_SELF = Pod("", "", "", "127.0.0.1")


class Provider:
    """One worker's own load. Calling it never raises and never waits for anything."""

    def __init__(
        self,
        device_id: int,
        environ: Mapping[str, str] | None = None,
        *,
        sysfs: pathlib.Path | str = "/sys",
        procfs: pathlib.Path | str = "/proc",
        timing: Timing | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Starts nothing yet.

        Args:
            device_id: The worker's GPU, as CUDA counts them in this process.
            environ: Where UCX_NET_DEVICES, MX_RDMA_NIC_PIN, CUDA_VISIBLE_DEVICES and MX_P2P_RUNTIME_METRICS_URL are
                read; None: this process's.
            sysfs: Root of the sysfs whose ports count.
            procfs: Root of the procfs that names the GPUs.
            timing: How often to sample, and what to average over.
            clock: Monotonic seconds.
        """
        environ = os.environ if environ is None else environ
        self._sysfs, self._procfs = Tree(sysfs), Tree(procfs)
        self._device_id = device_id
        self._visible = environ.get("CUDA_VISIBLE_DEVICES", "")
        self._timing = timing or Timing()
        self._clock = clock
        self._nics = NicSampler(self._sysfs, self._timing, clock)
        self._source = _source(device_id, environ)
        self._engines = _engines(self._source)
        self._places: dict[int, Place] | None = None
        self._stopping = threading.Event()
        self._value: tuple[float, float | None] | None = None  # when, and what
        self._thread: threading.Thread | None = None
        self._troubled = False

    def __call__(self) -> float | None:
        """The load now; None when nothing is known."""
        value = self._value
        if value is None or self._clock() - value[0] > max(5.0, 3 * self._timing.interval):
            return None
        return value[1]

    def start(self) -> Provider:
        """Begin to sample in a thread of its own."""
        self._thread = threading.Thread(target=self._run, name="mx-source-load", daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        """End it."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(timeout=5)

    def sample(self) -> float | None:
        """Looks once and gives the load; what the thread does every interval."""
        nics = self._nics.tick()
        usages: tuple[Usage, ...] = self._engines.usages().get(_SELF, ()) if self._engines else ()
        assignments = assign(self._source, nics.statuses, self._where())
        ours = [one for one in assignments if one.gpu in ("", str(self._device_id))]
        loads = blend(_SELF, ours, usages, nics.statuses, nics.carriers)
        load = loads[0].load if loads else None
        self._value = (self._clock(), load)
        return load

    def _run(self) -> None:
        try:
            if self._engines:
                self._engines.start()
            while not self._stopping.is_set():
                self._sample_safely()
                self._stopping.wait(self._timing.interval)
        except Exception:  # noqa: BLE001 - telemetry never harms the worker it runs in
            _LOG.exception("the source's load is not sampled any more")
        finally:
            self._nics.stop()
            if self._engines:
                self._engines.stop()

    def _sample_safely(self) -> None:
        try:
            self.sample()
            self._troubled = False
        except Exception:  # noqa: BLE001 - one bad look must not end all others
            if not self._troubled:
                _LOG.exception("the source's load could not be sampled; the next look is tried all the same")
            self._troubled = True

    def _where(self) -> dict[int, Place]:
        """The place of this worker's GPU; found once, a GPU does not move."""
        if self._places is None:
            address = _address(self._procfs, self._device_id, self._visible)
            found = place(self._sysfs, address) if address else None
            self._places = {} if found is None else {self._device_id: found}
        return self._places


def make_source_load_provider(device_id: int) -> Callable[[], float | None]:
    """Returns a provider of this worker's load in [0, 1] that is sampling from now on; never raises.

    Args:
        device_id: The worker's GPU, as CUDA counts them in this process.
    """
    try:
        return Provider(device_id).start()
    except Exception:  # noqa: BLE001 - telemetry never harms the worker it runs in
        _LOG.exception("the source's load cannot be sampled")
        return lambda: None


def _source(device_id: int, environ: Mapping[str, str]) -> Source:
    """What this process's environment says of its NICs and its engine."""
    pin, ucx = environ.get("MX_RDMA_NIC_PIN", ""), environ.get("UCX_NET_DEVICES", "")
    pins = tuple(filter(None, map(str.strip, pin.split(",")))) if "," in pin else ()
    named = () if ucx in ("", "all") or ucx.startswith("^") else tuple(filter(None, map(str.strip, ucx.split(","))))
    own = pins[device_id : device_id + 1] if device_id >= 0 else ()
    return Source(_SELF, _endpoints(environ), nic_devices=own or named, gpus=(Gpu(device_id),))


def _endpoints(environ: Mapping[str, str]) -> tuple[Endpoint, ...]:
    """The engine's page: MX_P2P_RUNTIME_METRICS_URL, whose host is taken to be this one."""
    try:
        url = urlsplit(environ.get("MX_P2P_RUNTIME_METRICS_URL", ""))
        port = url.port or {"http": 80, "https": 443}.get(url.scheme)
    except ValueError:
        return ()
    return (Endpoint(port, url.path or None, url.scheme),) if port and url.scheme in ("http", "https") else ()


class _Alone:
    """A discovery that knows this process only."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def start(self) -> None:
        """Nothing to begin."""

    def stop(self) -> None:
        """Nothing to end."""

    def sources(self) -> tuple[Source, ...]:
        """This process."""
        return (self._source,)

    def age(self) -> float | None:
        """Always up to date."""
        return 0.0


def _engines(source: Source) -> Engines | None:
    """The reader of this process's engine page; None, and nothing imported for it, where there is no page."""
    if not source.endpoints:
        return None
    from mx_exporter.engines import Engines

    return Engines(_Alone(source))


def _address(procfs: Tree, device_id: int, visible: str) -> str | None:
    """The PCI address of a GPU by CUDA's number: its place among those CUDA_VISIBLE_DEVICES names, or among all."""
    gpus = host_gpus(procfs)
    if not visible:
        return gpus[device_id].pci_address if 0 <= device_id < len(gpus) else None
    names = [name.strip() for name in visible.split(",")]
    if not 0 <= device_id < len(names):
        return None
    name = names[device_id]
    if name.isascii() and name.isdigit():
        return gpus[int(name)].pci_address if int(name) < len(gpus) else None
    return next((gpu.pci_address for gpu in gpus if name and gpu.uuid.startswith(name)), None)
