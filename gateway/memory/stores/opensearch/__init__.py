"""Sessions in an OpenSearch cluster: in an agentic memory container, or in an index."""
