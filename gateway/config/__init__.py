"""Settings: their schema, how they are read, and their documentation."""
