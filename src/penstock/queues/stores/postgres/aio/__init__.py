"""Queues in PostgreSQL."""
