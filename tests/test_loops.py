"""Plain tests have no event loop, so that none is left open by them."""

from __future__ import annotations

import asyncio
import threading
import warnings

import pytest


async def test_first_one_with_a_loop() -> None:
    assert asyncio.get_running_loop().is_running()


def test_then_one_without() -> None:
    """What pytest-asyncio and looptime do around every test; it must not make a loop."""
    assert threading.current_thread() is threading.main_thread()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        policy = asyncio.get_event_loop_policy()
        with pytest.raises(RuntimeError, match="no current event loop"):
            policy.get_event_loop()
