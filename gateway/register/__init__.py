"""Registration: a one-call agent on any cluster."""
