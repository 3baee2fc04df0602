"""The shell around the decisions: one loop per MX endpoint, which asks, decides, writes and reports, cycle by cycle."""
