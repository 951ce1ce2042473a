"""Peers that are code of our own."""
