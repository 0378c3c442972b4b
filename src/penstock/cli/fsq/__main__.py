"""`python -m penstock.cli.fsq` is the command `fsq`."""

from penstock.cli.fsq.launcher import main

main(program="fsq")
