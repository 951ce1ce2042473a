"""Migration: what each agent accepts, and how to upgrade or promote it. Synchronous, over the cluster's own API."""
