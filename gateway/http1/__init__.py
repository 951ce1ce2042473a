"""HTTP/1.1 without I/O, read strictly: rules, fields, heads, bodies and states. Imports nothing else of the gateway."""
