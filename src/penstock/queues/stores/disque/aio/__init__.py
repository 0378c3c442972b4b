"""Queues in a cluster of nodes."""
