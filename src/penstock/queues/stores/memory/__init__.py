"""Penstock's own."""
