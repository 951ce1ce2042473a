"""Logs and metrics. Never on the path of a request."""
