"""`penstock cli`: commands for a node, from the command line, a script or a prompt."""

from penstock.cli.shell.modes import run

__all__ = ["run"]
