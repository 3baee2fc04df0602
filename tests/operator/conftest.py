"""What the operator's tests share."""

from __future__ import annotations

import asyncio

# Python 3.11 makes an event loop for whoever asks for the current one, and pytest-asyncio asks: nobody would close it.
asyncio.set_event_loop(None)
