"""The broker: a Disque-compatible node."""
