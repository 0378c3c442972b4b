"""Queues in an SQLite file."""
