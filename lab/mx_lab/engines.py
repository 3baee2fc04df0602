"""The engines' own metrics pages, in the formats that vLLM and SGLang serve, on each pod's own address."""

from __future__ import annotations

import time
from typing import Final

from aiohttp import web

from mx_lab.fleet import ENGINE_PORT, MODEL, Fleet
from mx_lab.traffic import Nic

#: The part of vLLM's page (0.33) that this project and its dashboards look at.
_VLLM: Final = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{engine="0",model_name="{model}"}} {running:.1f}
# HELP vllm:num_requests_waiting Number of requests waiting to be processed.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{{engine="0",model_name="{model}"}} {waiting:.1f}
# HELP vllm:kv_cache_usage_perc KV-cache usage. 1 means 100 percent usage.
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{{engine="0",model_name="{model}"}} {kv!r}
# HELP vllm:generation_tokens_total Number of generation tokens processed.
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{{engine="0",model_name="{model}"}} {tokens:.1f}
# HELP vllm:time_to_first_token_seconds Histogram of time to first token in seconds.
# TYPE vllm:time_to_first_token_seconds histogram
{ttft}"""

#: The same of SGLang's (0.5).
_SGLANG: Final = """\
# HELP sglang:num_running_reqs The number of running requests.
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{{engine_type="unified",model_name="{model}",pp_rank="0",tp_rank="0"}} {running:.1f}
# HELP sglang:num_queue_reqs The number of requests in the waiting queue.
# TYPE sglang:num_queue_reqs gauge
sglang:num_queue_reqs{{engine_type="unified",model_name="{model}",pp_rank="0",tp_rank="0"}} {waiting:.1f}
# HELP sglang:token_usage The token usage.
# TYPE sglang:token_usage gauge
sglang:token_usage{{engine_type="unified",model_name="{model}",pp_rank="0",tp_rank="0"}} {kv:.2f}
# HELP sglang:generation_tokens_total Number of generation tokens processed.
# TYPE sglang:generation_tokens_total counter
sglang:generation_tokens_total{{engine_type="unified",model_name="{model}"}} {tokens:.1f}
# HELP sglang:time_to_first_token_seconds Histogram of time to first token in seconds.
# TYPE sglang:time_to_first_token_seconds histogram
{ttft}"""
_PAGES: Final = {"vllm": _VLLM, "sglang": _SGLANG}
_LABELS: Final = {"vllm": 'engine="0",model_name="{}"', "sglang": 'engine_type="unified",model_name="{}"'}
_TTFT_BUCKETS: Final = (0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0)
_REQUESTS_A_SECOND: Final = 8.0


def page(nic: Nic, now: float, age: float) -> str:
    """An engine's page.

    Args:
        nic: Whose engine.
        now: Time that the load is asked for.
        age: Seconds that the engine has served; its counters are proportional to it.
    """
    source, load, requests = nic.source, nic.load(now), age * _REQUESTS_A_SECOND
    return _PAGES[source.engine].format(
        model=MODEL,
        running=4 + 60 * load,
        waiting=max(0.0, 40 * (load - 0.7)),
        kv=nic.kv(now),
        tokens=requests * 120,
        ttft=_histogram(source.engine, requests, 0.05 + 0.6 * source.load**2),
    )


def _histogram(engine: str, count: float, typical: float) -> str:
    """A histogram of `count` requests around `typical` seconds; that must stay the same, or buckets would fall."""
    labels = _LABELS[engine].format(MODEL)
    name = f"{engine}:time_to_first_token_seconds"
    lines = [
        f'{name}_bucket{{{labels},le="{bound}"}} {int(count * bound**2 / (bound**2 + typical**2))}'
        for bound in _TTFT_BUCKETS
    ]
    lines += [f'{name}_bucket{{{labels},le="+Inf"}} {int(count)}', f"{name}_count{{{labels}}} {int(count)}"]
    lines.append(f"{name}_sum{{{labels}}} {count * typical:.3f}")
    return "\n".join(lines) + "\n"


class Engines:
    """All engines' HTTP servers."""

    def __init__(self, fleet: Fleet, nics: dict[str, Nic]) -> None:
        self._fleet, self._nics, self._started = fleet, nics, time.monotonic()
        self._runners: list[web.AppRunner] = []

    async def start(self) -> None:
        """Listen on every pod's address."""
        for source in self._fleet:
            application = web.Application()
            application.router.add_get("/metrics", self._handler(self._nics[source.name]))
            runner = web.AppRunner(application, access_log=None, shutdown_timeout=1)
            await runner.setup()
            self._runners.append(runner)
            await web.TCPSite(runner, source.ip, ENGINE_PORT).start()

    def _handler(self, nic: Nic):  # type: ignore[no-untyped-def]  # aiohttp's own handler type is private
        async def metrics(_: web.Request) -> web.Response:
            now = time.monotonic()
            return web.Response(text=page(nic, now, now - self._started), content_type="text/plain")

        return metrics

    async def stop(self) -> None:
        """Stop listening."""
        for runner in self._runners:
            await runner.cleanup()
