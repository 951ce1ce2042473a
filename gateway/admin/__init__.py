"""The admin port: health and metrics."""
