"""Reads agents from the cluster and caches their profiles."""
