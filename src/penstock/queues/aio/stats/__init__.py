"""Where counters, pauses and the directory of queues are kept: one module a place."""
