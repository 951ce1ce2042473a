"""Recorded exchanges: what is taken of each, without secrets, and the sinks that it goes to."""
