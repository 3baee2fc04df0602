"""In which of our two forms a client gets the page: pure decisions over its Accept and Accept-Encoding headers.

There are two forms and both may be compressed: what a client can make us render and keep ends there. (The Prometheus
client library's own negotiation takes the version from the client, whatever it is.)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

TEXT = "text/plain; version=0.0.4"
OPENMETRICS = "application/openmetrics-text; version=1.0.0"
FORMS = (TEXT, OPENMETRICS)

_Offer = tuple[str, Mapping[str, str]]


def form(accept: str) -> str:
    """The form for an Accept header: OpenMetrics where it is asked for and no less liked than text."""
    wanted = {TEXT: 0.0, OPENMETRICS: 0.0}
    for kind, parameters in _offers(accept):
        for one in FORMS:
            ours, _, version = one.partition("; version=")
            if kind == ours and parameters.get("version", version) == version:
                wanted[one] = max(wanted[one], _quality(parameters))
    return OPENMETRICS if wanted[OPENMETRICS] > 0 and wanted[OPENMETRICS] >= wanted[TEXT] else TEXT


def takes_gzip(accept_encoding: str) -> bool:
    """Whether an Accept-Encoding header names gzip without ruling it out (`gzip;q=0`)."""
    return any(kind == "gzip" and _quality(parameters) > 0 for kind, parameters in _offers(accept_encoding))


def _offers(header: str) -> Iterator[_Offer]:
    for offer in header.lower().split(","):
        kind, *parameters = offer.split(";")
        pairs = (parameter.partition("=") for parameter in parameters)
        yield kind.strip(), {name.strip(): value.strip().strip('"') for name, _, value in pairs}


def _quality(parameters: Mapping[str, str]) -> float:
    """How much an offer is liked, from 0 to 1; one that is not to be understood is not liked at all."""
    try:
        quality = float(parameters.get("q", "1"))
    except ValueError:
        return 0.0
    return quality if 0 <= quality <= 1 else 0.0
