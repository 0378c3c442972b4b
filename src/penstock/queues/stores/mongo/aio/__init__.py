"""Queues in MongoDB."""
