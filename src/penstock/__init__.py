"""Penstock: one job queue for brokers, databases and directories."""
