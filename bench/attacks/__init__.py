"""Attacks on the gateway, and what another client notices of them. See `docs/evidence/attacks.md`."""
