"""For all tests of the exporter."""

from __future__ import annotations

import asyncio

from hypothesis import settings

# Before 3.12 pytest-asyncio asks the main thread for its loop when an async test follows a plain one. None having been
# set, Python makes one that nobody closes, and the warning fails whatever test the collector happens to run in.
asyncio.set_event_loop(None)

# How long an example takes says nothing on a machine that does other things beside.
settings.register_profile("exporter", deadline=None)
settings.load_profile("exporter")
