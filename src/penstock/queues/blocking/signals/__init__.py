# Written by scripts/blocking from src/penstock/queues/aio/signals/__init__.py: change that, then run `make blocking`.
"""How waiting consumers hear of new jobs: one module a way."""
