"""Dashboards and rules as typed code: `python -m dashboards` writes the files that Grafana and Prometheus read.

`boards` holds one module per dashboard and says what is asked and how it is shown; `rules` holds the recording rules
and the alerts. Both speak through `promql` (expressions), `house` (how panels look) and `grid` (where they go), so that
a panel is one statement. The generated files are committed; `scripts/check` fails when they are not up to date.
"""
