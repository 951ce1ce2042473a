"""Bytes to and from the cluster."""
