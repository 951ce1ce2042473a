"""Where what was spent is kept: one file per store."""
