"""What the engines on this node say of their KV caches: the door of the room.

The shell makes one `Engines`, starts it and reads `usages` and `scrapes` whenever somebody looks; both answer from
memory. Inside: `gauges` (the table of engines, in data), `lines` and `exposition` (bytes to samples), `readings`
(samples to usages), `targets` (which page of which pod), `pages` (the HTTP seam) and `scraper` (the loop).
"""

from __future__ import annotations

from mx_exporter.engines.scraper import Engines
from mx_exporter.engines.settings import ScrapeSettings
from mx_exporter.engines.status import ScrapeStatus

__all__ = ["Engines", "ScrapeSettings", "ScrapeStatus"]
