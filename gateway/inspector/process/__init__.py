"""The recorder in a process of its own, so that the one that serves requests only gathers what is recorded."""
