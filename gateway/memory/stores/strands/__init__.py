"""Sessions as files of the Strands SDK."""
