"""What the gateway costs beside its peers: ``make bench`` (see ``docs/evidence/benchmarks.md``)."""
