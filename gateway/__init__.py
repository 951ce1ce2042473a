"""mlc-gateway: the unified agent input of OpenSearch ML Commons, for clusters and agents that lack it."""

__version__ = "0.1.0"
