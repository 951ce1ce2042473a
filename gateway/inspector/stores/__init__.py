"""Where exchanges are recorded; one store per file."""
