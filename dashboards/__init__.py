"""Dashboards and rules as typed code: `python -m dashboards` writes the files that Grafana and Prometheus read.

`boards` holds one module per dashboard and says what is asked and how it is shown; `rules` holds the recording rules
and the alerts. Both speak through `promql` (expressions), `house` (how panels look) and `grid` (where they go), so that
a panel is one statement. The generated files are committed; `scripts/check` fails when they are not up to date.
"""

import warnings

with warnings.catch_warnings():
    # On import the SDK recommends its newer schema, which Grafana 12 and later read; all of them read this one.
    warnings.simplefilter("ignore", DeprecationWarning)
    import grafana_foundation_sdk.builders.dashboard
    import grafana_foundation_sdk.models.dashboard
    import grafana_foundation_sdk.models.dashboardv2beta1  # noqa: F401
