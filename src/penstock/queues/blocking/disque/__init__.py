# Written by scripts/blocking from src/penstock/queues/aio/disque/__init__.py: change that, then run `make blocking`.
"""The store of our broker in parts, from below: clients, base, scanning, looking, settling, claims, survey, marks."""
