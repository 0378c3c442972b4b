# Written by scripts/blocking from ../aio/stats/__init__.py: change that, then run `make blocking`.
"""Where counters, pauses and the directory of queues are kept: one module a place."""
