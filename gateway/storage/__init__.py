"""Files of the gateway's own, for its owner only: paths, atomic writes, locks, SQLite."""
