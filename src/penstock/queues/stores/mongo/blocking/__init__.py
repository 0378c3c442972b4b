# Written by scripts/blocking from ../aio/__init__.py: change that, then run `make blocking`.
"""Queues in MongoDB."""
