"""What the gateway tells of itself: logs and metrics. Never on the path of a request."""
