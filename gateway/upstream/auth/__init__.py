"""The credentials of the gateway's own for the cluster: basic, or SigV4."""
