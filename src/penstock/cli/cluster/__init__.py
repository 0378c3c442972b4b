"""`penstock cluster`: try a cluster on this machine, show one, and change which nodes are in it."""

from penstock.cli.cluster.commands import app, run

__all__ = ["app", "run"]
