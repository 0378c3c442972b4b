"""The same as `penstock.tasks.aio` without an event loop, written by scripts/blocking."""
