"""A real vLLM on the CPU, whose small KV cache really fills; `scripts/real-vllm` builds it.

The cache holds 64 blocks of 128 tokens (8,192 tokens): 8 requests of 512 + 128 tokens in flight fill about half of it,
16 fill it, and it empties as soon as they end. A start takes 35 to 110 s on two cores: share one server among the tests
of a module, and mark them `real_vllm`.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import random
import signal
import string
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence

from mx_lab.processes import Process, free_port
from tests.parts.tools import cache

REPOSITORY = pathlib.Path(__file__).parents[2]
MODEL = "tiny"
KV_GAUGE = "vllm:kv_cache_usage_perc"
START_SECONDS = 180.0
_SMALL_CACHE = ("--max-model-len", "1024", "--num-gpu-blocks-override", "64", "--enforce-eager")
_REQUEST_SECONDS = 120.0
_STOP_SECONDS = 15.0


def root() -> pathlib.Path:
    """The folder that `scripts/real-vllm` fills."""
    return cache() / "real-vllm"


def missing() -> str | None:
    """Why this part cannot be had here; None when it can."""
    return None if (root() / "complete").exists() else "no real vLLM: run scripts/real-vllm"


def bring_up_to_date() -> None:
    """Install this project as it is now beside vLLM, where it changed since `scripts/real-vllm` was run (5 s).

    Raises:
        subprocess.CalledProcessError: It could not be built.
    """
    subprocess.run([REPOSITORY / "scripts" / "real-vllm"], check=True, capture_output=True, timeout=300)


def python() -> pathlib.Path:
    """The interpreter beside vLLM, in which `modelexpress` and this project are installed too."""
    return root() / "venv" / "bin" / "python"


def aiperf() -> pathlib.Path | None:
    """AIPerf's program, or None where `scripts/real-vllm --with-aiperf` was not run."""
    program = root() / "aiperf" / "bin" / "aiperf"
    return program if program.exists() else None


class RealVllm:
    """A running server: its page, and bounded load on it."""

    def __init__(self, port: int, process: Process) -> None:
        self.port, self.process = port, process
        self.url = f"http://127.0.0.1:{port}"

    def ready(self) -> bool:
        """Whether it answers requests."""
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{self.url}/health", timeout=2) as answer:
            return bool(answer.status == 200)
        return False

    def page(self) -> str:
        """The whole /metrics page."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=10) as answer:
            return str(answer.read().decode())

    def kv_usage(self) -> float:
        """Share of the KV cache in use, 0 to 1, as the page says it.

        Raises:
            LookupError: The page has no such gauge.
        """
        for line in self.page().splitlines():
            if line.startswith(KV_GAUGE + "{"):
                return float(line.rpartition(" ")[2])
        raise LookupError(f"{self.url}/metrics has no {KV_GAUGE}")

    def complete(self, prompt: str, output_tokens: int) -> int:
        """Have `output_tokens` tokens generated after `prompt` (a byte is a token); the tokens that came."""
        body = {"model": MODEL, "prompt": prompt, "max_tokens": output_tokens, "ignore_eos": True}
        request = urllib.request.Request(
            f"{self.url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=_REQUEST_SECONDS) as answer:
            return int(json.load(answer)["usage"]["completion_tokens"])

    @contextlib.contextmanager
    def load(
        self, in_flight: int = 16, *, seconds: float = 60.0, prompt_tokens: int = 512, output_tokens: int = 128
    ) -> Iterator[Load]:
        """Keep `in_flight` requests running, for `seconds` at most; leaving the block waits for the last ones."""
        load = Load(self, in_flight, time.monotonic() + seconds, prompt_tokens, output_tokens)
        try:
            yield load
        finally:
            load.stop()


class Load:
    """Requests in flight until stopped, until their time is over, or until the server does not answer."""

    def __init__(self, server: RealVllm, in_flight: int, end: float, prompt_tokens: int, output_tokens: int) -> None:
        self.completed, self.failed = 0, 0
        self._server, self._end = server, end
        self._prompt_tokens, self._output_tokens = prompt_tokens, output_tokens
        self._stopped, self._lock = threading.Event(), threading.Lock()
        self._threads = [threading.Thread(target=self._run, args=(seed,), daemon=True) for seed in range(in_flight)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Send no more requests and wait for those in flight."""
        self._stopped.set()
        for thread in self._threads:
            thread.join()

    def _run(self, seed: int) -> None:
        # Prompts differ, so that the prefix cache shares nothing between them.
        choice = random.Random(seed)
        while not self._stopped.is_set() and time.monotonic() < self._end:
            prompt = "".join(choice.choices(string.ascii_letters, k=self._prompt_tokens))
            try:
                self._server.complete(prompt, self._output_tokens)
            except (OSError, ValueError):
                with self._lock:
                    self.failed += 1
                return
            with self._lock:
                self.completed += 1


@contextlib.contextmanager
def real_vllm(
    folder: pathlib.Path,
    *,
    port: int | None = None,
    arguments: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    wait: bool = True,
) -> Iterator[RealVllm]:
    """Run `vllm serve` on loopback.

    Args:
        folder: Where its log goes.
        port: A free one when None.
        arguments: Further arguments of `vllm serve`.
        env: Further environment variables.
        wait: Whether to yield only once it answers; else at once, for tests of what a start looks like.

    Raises:
        ProcessError: It did not start.
    """
    assert (reason := missing()) is None, reason
    folder.mkdir(parents=True, exist_ok=True)
    at = port or free_port()
    with Process("vllm", _command(at, arguments), folder / "vllm.log", env=_environment(env or {})) as process:
        server = RealVllm(at, process)
        if wait:
            process.wait_ready(server.ready, START_SECONDS)
        try:
            yield server
        finally:
            # Only the first process of its group: it ends the others itself and removes their shared memory.
            with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
                os.kill(process.pid, signal.SIGTERM)
                process.wait(_STOP_SECONDS)


def _command(port: int, arguments: Sequence[str]) -> list[str]:
    serve = [str(root() / "venv" / "bin" / "vllm"), "serve", str(root() / "tiny"), "--served-model-name", MODEL]
    dummy = ["--load-format", "dummy", "--dtype", "float32"]
    return [*serve, *dummy, "--host", "127.0.0.1", "--port", str(port), *_SMALL_CACHE, *arguments]


def _environment(further: Mapping[str, str]) -> dict[str, str]:
    """Ours without what belongs to the tests' own interpreter, and nothing that asks the network."""
    own = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    offline = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
    return {**own, **offline, **further}
