"""Migration: which agents can take what, and what mends the rest. Synchronous, over the cluster's own API."""
