"""The embedded MX server: a passthrough of `source_load` for development, tests, the lab and small fleets.

`core` decides, `backends` keep rows (memory, Redis, Kubernetes), `service` and `reaper` put the two together, `app`
assembles a server, `cli` is the door. See docs/server.md.
"""
