# Written by scripts/blocking from ../aio/signals/__init__.py: change that, then run `make blocking`.
"""How waiting consumers hear of new jobs: one module a way."""
