"""From settings to a backend that has answered once. Called by `app`; imports only what the choice needs."""

from __future__ import annotations

import asyncio

from mx_server.backends import Backend
from mx_server.errors import BackendUnavailable
from mx_server.settings import BadSetting, Settings


async def opened(settings: Settings) -> Backend:
    """Open the backend that `settings` names.

    Raises:
        BadSetting: No such backend.
        BackendUnavailable: It does not answer.
    """
    backend = _made(settings)
    try:
        async with asyncio.timeout(settings.backend_timeout):
            await backend.check()
    except TimeoutError:
        await backend.close()
        raise BackendUnavailable(f"no answer within {settings.backend_timeout:g} s") from None
    except BaseException:
        await backend.close()
        raise
    return backend


def _made(settings: Settings) -> Backend:
    if settings.backend == "memory":
        from mx_server.backends.memory import MemoryBackend

        return MemoryBackend()
    if settings.backend == "redis":
        from mx_server.backends.redis import RedisBackend

        return RedisBackend(settings.redis_url, settings.redis_prefix, min(2.0, 0.8 * settings.backend_timeout))
    if settings.backend == "kubernetes" and settings.kubernetes is not None:
        from mx_server.backends.kubernetes import KubernetesBackend
        from mx_server.kube_client import KubeClient

        client = KubeClient(settings.kubernetes, 0.8 * settings.backend_timeout)
        return KubernetesBackend(client, settings.kubernetes.namespace)
    raise BadSetting(f"--backend {settings.backend!r}: give memory, redis or kubernetes")
