"""Queues in directories."""
