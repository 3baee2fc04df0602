"""For all tests of the exporter."""

from __future__ import annotations

from hypothesis import settings

# How long an example takes says nothing on a machine that does other things beside.
settings.register_profile("exporter", deadline=None)
settings.load_profile("exporter")
