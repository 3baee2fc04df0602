"""One signal's query, from asyncio: a thread and a session of its own, and a deadline that holds."""

from __future__ import annotations

import asyncio
import concurrent.futures
import re
from typing import Any, Final, Protocol

import requests
from prometheus_api_client import PrometheusConnect
from prometheus_api_client.exceptions import PrometheusApiClientException
from urllib3 import Retry

from mx_operator.core.joins import Index, index
from mx_operator.policies import endpoints
from mx_operator.policies.spec import PartialResponse, Prometheus, Signal
from mx_operator.prometheus import queries
from mx_operator.prometheus.credentials import credentials
from mx_operator.prometheus.errors import PrometheusError, cause
from mx_operator.prometheus.sessions import Session, said

#: Series of one signal; above it something is wrong with the query.
MAX_SERIES: Final = 50_000
#: How much longer than its deadline a query is waited for, in seconds: its thread ends by itself.
_PATIENCE: Final = 1.0


class SignalClient(Protocol):
    """What the loop needs of a signal; the fake beside the tests has it too."""

    async def ask(self) -> Index:
        """One complete answer.

        Raises:
            PrometheusError: There was none.
        """

    def close(self) -> None:
        """Give up the query that is under way, and let go of the connection."""


class HttpSignal:
    """A signal over HTTP."""

    def __init__(self, prometheus: Prometheus, signal: Signal) -> None:
        """Connect lazily."""
        self._prometheus, self._signal = prometheus, signal
        self._query = queries.combined(signal)
        self._parameters = _parameters(prometheus)
        self._session = Session(prometheus, queries.reader(signal))
        self._client = PrometheusConnect(
            prometheus.url,
            session=self._session,
            auth=credentials(prometheus),
            method="POST",
            timeout=prometheus.timeout,
            retry=Retry(total=0),
        )
        self._session.use_own_adapter(prometheus.url)
        self._running: asyncio.Future[Index] | None = None
        self._thread = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix=f"signal-{signal.name}")

    async def ask(self) -> Index:
        """See `SignalClient`."""
        if self._running is None or self._running.done():
            self._running = asyncio.get_running_loop().run_in_executor(self._thread, self._ask)
            self._running.add_done_callback(_swallow)  # nobody waits any more when the loop ends
        elif await self._ended(self._prometheus.timeout):
            raise PrometheusError("Timeout", "the query before this one has only just ended")
        if not await self._ended(self._prometheus.timeout):
            self._session.abort()
            # A name look-up cannot be interrupted: it is left to end, and nothing new is asked until it has.
            if not await self._ended(_PATIENCE):
                raise PrometheusError("Timeout", f"no answer within {self._prometheus.timeout:g} s")
        return self._running.result()

    async def _ended(self, seconds: float) -> bool:
        assert self._running is not None
        done, _ = await asyncio.wait([self._running], timeout=seconds)
        return bool(done)

    def _ask(self) -> Index:
        try:
            result = self._client.custom_query(self._query, params=self._parameters)
        except PrometheusError:
            raise
        except PrometheusApiClientException as error:
            raise _refused(str(error)) from error
        except requests.RequestException as error:
            where = endpoints.host_port(self._prometheus.url)
            raise PrometheusError("Unreachable", f"{where}: {cause(error)}") from error
        except OSError as error:  # requests' word for a CA or client certificate that cannot be read
            raise PrometheusError("Configuration", _plain(error)) from error
        except (KeyError, ValueError, TypeError) as error:
            raise PrometheusError("NotPrometheus", _plain(error)) from error
        return index(self._signal, queries.samples(result, MAX_SERIES))

    def close(self) -> None:
        """See `SignalClient`."""
        self._session.abort()
        self._session.close()
        self._thread.shutdown(wait=False, cancel_futures=True)


def _swallow(done: asyncio.Future[Any]) -> None:
    if not done.cancelled():
        done.exception()


def _parameters(prometheus: Prometheus) -> dict[str, str]:
    """What makes Thanos and VictoriaMetrics answer truthfully; others ignore parameters they do not know.

    Thanos answers partially, and VictoriaMetrics with what it cached 30 s ago, unless told not to.
    """
    whole = prometheus.partial_response is PartialResponse.REJECT
    return {
        "dedup": "true",
        "partial_response": "false" if whole else "true",
        "deny_partial_response": "1" if whole else "0",
        "nocache": "1",
        "timeout": f"{prometheus.timeout:g}s",
    }


_HTTP: Final = re.compile(r"HTTP Status Code (\d+) \(b(['\"])(.*)\2\)", re.DOTALL)


def _refused(text: str) -> PrometheusError:
    """The library puts the body's repr into the text of its exception."""
    match = _HTTP.fullmatch(text)
    if match is None:
        return PrometheusError("Refused", text)
    body = match[3].encode("latin-1", "replace").decode("unicode_escape").encode("latin-1", "replace")
    return PrometheusError(f"HTTP{match[1]}", f"HTTP {match[1]}: {said(body)}")


def _plain(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:300]
