"""A simulated ML Commons cluster and LLM endpoints, for the demo and the tests. See README.md beside this file."""
