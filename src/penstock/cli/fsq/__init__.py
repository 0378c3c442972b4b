"""`fsq`, also `penstock fsq`: queues in directories, on the command line."""

from penstock.cli.fsq.launcher import main, run

__all__ = ["main", "run"]
