"""The data port: client connections, routing, admission, the relay of exchanges, and error responses."""
