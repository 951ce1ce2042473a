"""The demo: a simulated cluster of each generation, a gateway before each, and a client that talks to their agents."""
