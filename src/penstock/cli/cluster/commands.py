"""The commands of `penstock cluster` and their options. What they do is in modules that are loaded when needed:

create.py   create, start, stop (processes and directories: local.py)
status.py   status (what the nodes report: view.py; tables: table.py)
change.py   add, remove, forget
drain.py    drain
access.py   connections to nodes    usage.py   help texts
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.application import application
from penstock.cli.application import run as run_application
from penstock.cli.cluster import usage
from penstock.cli.cluster.access import access
from penstock.cli.cluster.local import DEFAULT_DIRECTORY, address_of_any
from penstock.cli.output import EventPrinter
from penstock.client.addresses import Address, parse_address

DEFAULT_ADDRESS = "127.0.0.1"
DEFAULT_NODE = f" Default: one of {DEFAULT_DIRECTORY} if that is here, else {DEFAULT_ADDRESS}:7711."

app = application()

Password = Annotated[
    str | None,
    typer.Option(
        "-a",
        "--password",
        metavar="PASSWORD",
        envvar="PENSTOCK_PASSWORD",
        show_envvar=False,
        help="The password of the nodes. Other users can read it in the process list: set the variable "
        "PENSTOCK_PASSWORD instead.",
    ),
]
Tls = Annotated[bool, typer.Option("--tls", help="Connect with TLS.")]
Ca = Annotated[
    str | None,
    typer.Option("--cacert", metavar="FILE", help="Trust the certificates in this file (default: the system's)."),
]
Cert = Annotated[
    str | None, typer.Option("--cert", metavar="FILE", help="The client's certificate, if the nodes require one.")
]
Key = Annotated[str | None, typer.Option("--key", metavar="FILE", help="The key of --cert.")]
Json = Annotated[bool, typer.Option("--json", help="Lines of JSON, for programs.")]
Directory = Annotated[
    Path, typer.Option("--dir", metavar="DIR", help="Where the nodes' directories are.", show_default=True)
]
Force = Annotated[bool, typer.Option("--force", help="Do it even where it would be refused, as described above.")]
NodeAddress = Annotated[str, typer.Argument(metavar="ADDRESS", help="The node: host:port.", show_default=False)]
Timeout = Annotated[
    float | None,
    typer.Option("--timeout", metavar="SECONDS", min=0, help="Maximum time to wait (default: no limit)."),
]


def run(argv: list[str]) -> int:
    """Run `penstock cluster` with these words; returns the exit code."""
    if not argv or argv[0] in ("-h", "--help"):
        print(usage.USAGE, end="")
        return 0
    return run_application(app, argv, "penstock cluster")


def _asked(address: str | None) -> Address:
    """Return the node to ask: the one that was named, or one of the cluster in this directory, or the default one."""
    if address is not None:
        return parse_address(address)
    return address_of_any(DEFAULT_DIRECTORY) or parse_address(DEFAULT_ADDRESS)


@app.command(help=usage.CREATE)
def create(
    count: Annotated[int, typer.Argument(metavar="N", help="Number of nodes, 1 to 50.", show_default=False)],
    directory: Directory = DEFAULT_DIRECTORY,
    base_port: Annotated[int, typer.Option("--base-port", metavar="PORT", help="The first port to try.")] = 7711,
    replace: Annotated[
        bool, typer.Option("--replace", help="Stop and delete the cluster that is in DIR, with all its jobs.")
    ] = False,
    events: Annotated[
        Path | None,
        typer.Option("--events", metavar="DIR", help="The directory that they write events into.", show_default=False),
    ] = None,
    is_json: Json = False,
) -> None:
    """Start nodes on this machine that form a cluster."""
    from penstock.cli.cluster import create as local_cluster

    raise typer.Exit(local_cluster.create(directory, count, base_port, replace, EventPrinter(is_json), events))


@app.command(help=usage.START)
def start(directory: Directory = DEFAULT_DIRECTORY, is_json: Json = False) -> None:
    """Start the nodes of a directory again."""
    from penstock.cli.cluster import create as local_cluster

    raise typer.Exit(local_cluster.start(directory, EventPrinter(is_json)))


@app.command(help=usage.STOP)
def stop(directory: Directory = DEFAULT_DIRECTORY, is_json: Json = False) -> None:
    """Stop the nodes of a directory."""
    from penstock.cli.cluster import create as local_cluster

    raise typer.Exit(local_cluster.stop(directory, EventPrinter(is_json)))


@app.command(help=usage.STATUS)
def status(
    address: Annotated[
        str | None, typer.Argument(metavar="ADDRESS", help=f"The node to ask first.{DEFAULT_NODE}", show_default=False)
    ] = None,
    is_json: Annotated[bool, typer.Option("--json", help="One line of JSON, for programs.")] = False,
    watch: Annotated[
        float | None, typer.Option("--watch", metavar="SECONDS", min=0.1, help="Repeat at this interval, until Ctrl-C.")
    ] = None,
    password: Password = None,
    tls: Tls = False,
    ca: Ca = None,
    cert: Cert = None,
    key: Key = None,
) -> None:
    """Show the nodes of a cluster."""
    from penstock.cli.cluster.status import status as show_status

    way = access(password, tls, ca, cert, key)
    raise typer.Exit(show_status(way, _asked(address), is_json, watch))


@app.command(help=usage.ADD)
def add(
    address: NodeAddress,
    to: Annotated[str, typer.Option("--to", metavar="ADDRESS", help="A node of the cluster.", show_default=False)],
    force: Force = False,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", min=0, help="How long to wait until all nodes see it.")
    ] = 60,
    is_json: Json = False,
    password: Password = None,
    tls: Tls = False,
    ca: Ca = None,
    cert: Cert = None,
    key: Key = None,
) -> None:
    """Add a node to a cluster."""
    from penstock.cli.cluster import change

    way = access(password, tls, ca, cert, key)
    code = change.add(way, parse_address(address), parse_address(to), force, timeout, EventPrinter(is_json))
    raise typer.Exit(code)


@app.command(help=usage.DRAIN)
def drain(
    address: NodeAddress,
    timeout: Timeout = None,
    is_json: Json = False,
    password: Password = None,
    tls: Tls = False,
    ca: Ca = None,
    cert: Cert = None,
    key: Key = None,
) -> None:
    """Drain a node."""
    from penstock.cli.cluster.drain import drain as drain_node

    way = access(password, tls, ca, cert, key)
    raise typer.Exit(drain_node(way, parse_address(address), EventPrinter(is_json), timeout))


@app.command(help=usage.REMOVE)
def remove(
    address: NodeAddress,
    shutdown: Annotated[bool, typer.Option("--shutdown", help="Stop the node afterwards.")] = False,
    force: Force = False,
    timeout: Timeout = None,
    is_json: Json = False,
    password: Password = None,
    tls: Tls = False,
    ca: Ca = None,
    cert: Cert = None,
    key: Key = None,
) -> None:
    """Remove a node from its cluster."""
    from penstock.cli.cluster import change

    way = access(password, tls, ca, cert, key)
    code = change.remove(way, parse_address(address), shutdown, force, timeout, EventPrinter(is_json))
    raise typer.Exit(code)


@app.command(help=usage.FORGET)
def forget(
    node: Annotated[
        str, typer.Argument(metavar="NODE", help="The dead node: an id or an address.", show_default=False)
    ],
    at: Annotated[
        str | None,
        typer.Option("--from", metavar="ADDRESS", help=f"A node of the cluster.{DEFAULT_NODE}", show_default=False),
    ] = None,
    force: Force = False,
    is_json: Json = False,
    password: Password = None,
    tls: Tls = False,
    ca: Ca = None,
    cert: Cert = None,
    key: Key = None,
) -> None:
    """Make all nodes forget a dead one."""
    from penstock.cli.cluster import change

    way = access(password, tls, ca, cert, key)
    raise typer.Exit(change.forget(way, node, _asked(at), force, EventPrinter(is_json)))
