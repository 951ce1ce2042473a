"""The use case "remember a conversation": sessions of whole messages, kept in a store of the operator's choice."""
