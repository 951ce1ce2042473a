"""HTTP/1.1 without I/O: rules, heads and bodies, read strictly. Imports nothing else of the gateway."""
