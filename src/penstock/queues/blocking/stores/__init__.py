# Written by scripts/blocking from src/penstock/queues/aio/stores/__init__.py: change that, then run `make blocking`.
"""The stores, one module each; each opens with a table of all that it touches."""
