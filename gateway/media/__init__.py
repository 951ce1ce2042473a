"""Media that a client names by URL, fetched from the hosts that the operator allows (docs/operate/media.md)."""
