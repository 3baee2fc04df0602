"""Generated from p2p.proto by scripts/stubs; import from mx_wire, not from here."""
