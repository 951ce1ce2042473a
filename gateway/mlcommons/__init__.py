"""How a cluster with ML Commons behaves: agents, versions, templates and the first LLM call. Pure."""
