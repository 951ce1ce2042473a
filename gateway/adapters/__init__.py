"""Other protocols in which clients run agents. Each run is a request to the data port (`run`)."""
