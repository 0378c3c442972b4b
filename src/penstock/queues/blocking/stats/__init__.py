# Written by scripts/blocking from src/penstock/queues/aio/stats/__init__.py: change that, then run `make blocking`.
"""Where counters, pauses and the directory of queues are kept: one module a place."""
