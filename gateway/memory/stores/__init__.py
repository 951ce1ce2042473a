"""The stores of sessions, one per file. Each implements `gateway.memory.store.Store`."""
