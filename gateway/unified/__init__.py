"""The unified `input`, decoded and validated. Pure."""
