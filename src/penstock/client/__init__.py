"""Clients of the broker. `Connection` is one blocking link to one node."""

from penstock.client.connection import Connection

__all__ = ["Connection"]
