"""What the operator tells of itself: metrics, health, logs."""
