"""What the client said: the unified `input`, decoded and validated. Pure."""
