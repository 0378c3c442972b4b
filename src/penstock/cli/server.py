"""`penstock server`: runs a node. The words are passed to the broker, except --help and --print-config."""

from importlib import import_module
from typing import Any

USAGE = """\
usage: penstock server [config-file] [--directive value ...]

Runs one node until it gets SIGTERM or SIGINT, or the command SHUTDOWN.

  config-file         one directive on each line, `#` begins a comment; `-` reads it from standard input
  --directive value   any directive of the file; these take precedence over the file
  --print-config      print a configuration file with every directive, its default and what it does
  --help              print this text

Start one node on port 7711, then talk to it:
  penstock server
  penstock cli ADDJOB mail 'hello' 0

Keep its jobs in a directory, and require a password of clients:
  penstock server --port 7712 --dir /var/lib/penstock --requirepass secret

Write a configuration file of your own:
  penstock server --print-config > penstock.conf
  penstock server penstock.conf --loglevel verbose

Clients use --port; the bus between nodes uses that port + 10000. Exit code 1: the node could not start.
"""


def run(argv: list[str]) -> int:
    """Answer --help and --print-config, else start the broker with the words as they are."""
    if argv[:1] in (["--help"], ["-h"]):
        print(USAGE, end="")
        return 0
    if argv[:1] == ["--print-config"]:
        print(_load("penstock.broker.config").print_config(), end="")
        return 0
    code: int = _load("penstock.broker.server").run(argv)
    return code


def _load(name: str) -> Any:
    return import_module(name)
