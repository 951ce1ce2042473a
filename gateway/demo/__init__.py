"""The demo: a simulated cluster of each generation, a gateway in front of each, and a client that runs their agents."""
