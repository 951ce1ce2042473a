"""Settings: their schema, how they are read and how they are described."""
