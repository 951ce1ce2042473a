"""Stores of what was spent: one file per store."""
