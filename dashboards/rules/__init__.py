"""Recording rules and alerts: what they are (`recordings`, `alerts`), and how they are written down (`rendering`)."""
