"""Where exchanges are recorded, one file each: stores, traces, the access log."""
