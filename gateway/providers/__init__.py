"""How each LLM provider writes a conversation. Pure; one file a provider, found through the registry."""
