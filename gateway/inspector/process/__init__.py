"""The recorder in a process of its own, so that the one that serves requests only has to copy what is recorded."""
