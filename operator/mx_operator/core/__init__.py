"""The decisions: pure functions on frozen values, without I/O and without a clock of their own.

`observe` (what a list proves about heartbeats), `plan` (which sources are written, and why the others are not),
`settle` (what became of the writes). Everything around it only carries values in and out.
"""
