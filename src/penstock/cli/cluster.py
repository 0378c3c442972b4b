"""`penstock cluster`: clusters for people, to try one out, to look at it, and to change who is in it.

This module holds the options. Each command is a module of its own that is loaded when it is called:

    cluster_create.py   create, start, stop (processes and directories: cluster_local.py)
    cluster_status.py   status (what the nodes say: cluster_view.py; tables: cluster_table.py)
    cluster_change.py   add, remove, forget (an add that failed: cluster_undo.py)
    cluster_drain.py    drain
    cluster_access.py   how nodes are reached    cluster_voice.py   what is said meanwhile    cluster_help.py   the help
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penstock.cli import cluster_help
from penstock.cli.application import application
from penstock.cli.application import run as run_application
from penstock.cli.cluster_access import access
from penstock.cli.cluster_local import DEFAULT_DIRECTORY, address_of_any
from penstock.cli.cluster_voice import Voice
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
        help="The password of the nodes. Others can read it in the process list: the variable PENSTOCK_PASSWORD does "
        "the same, and they can't.",
    ),
]
Tls = Annotated[bool, typer.Option("--tls", help="Connect with TLS.")]
Ca = Annotated[
    str | None,
    typer.Option("--cacert", metavar="FILE", help="Trust the certificates in this file (default: the system's)."),
]
Cert = Annotated[
    str | None, typer.Option("--cert", metavar="FILE", help="The client's certificate, if nodes ask for one.")
]
Key = Annotated[str | None, typer.Option("--key", metavar="FILE", help="The key of --cert.")]
Json = Annotated[bool, typer.Option("--json", help="Lines of JSON, for programs.")]
Directory = Annotated[
    Path, typer.Option("--dir", metavar="DIR", help="Where the nodes' directories are.", show_default=True)
]
Force = Annotated[bool, typer.Option("--force", help="Do what would be refused, as told above.")]
NodeAddress = Annotated[str, typer.Argument(metavar="ADDRESS", help="The node: host:port.", show_default=False)]
Timeout = Annotated[
    float | None,
    typer.Option("--timeout", metavar="SECONDS", min=0, help="Wait no longer (default: as long as it takes)."),
]


def run(argv: list[str]) -> int:
    """Run `penstock cluster` with these words. Returns the exit code."""
    if not argv or argv[0] in ("-h", "--help"):
        print(cluster_help.USAGE, end="")
        return 0
    return run_application(app, argv, "penstock cluster")


def _asked(address: str | None) -> Address:
    """Return the node to ask: the one that was named, or one of the cluster in this directory, or the default one."""
    if address is not None:
        return parse_address(address)
    return address_of_any(DEFAULT_DIRECTORY) or parse_address(DEFAULT_ADDRESS)


@app.command(help=cluster_help.CREATE)
def create(
    count: Annotated[int, typer.Argument(metavar="N", help="How many nodes, 1 to 50.", show_default=False)],
    directory: Directory = DEFAULT_DIRECTORY,
    base_port: Annotated[int, typer.Option("--base-port", metavar="PORT", help="The first port to try.")] = 7711,
    replace: Annotated[
        bool, typer.Option("--replace", help="Stop and delete the cluster that is in DIR, with all its jobs.")
    ] = False,
    is_json: Json = False,
) -> None:
    """Start nodes on this machine that form a cluster."""
    from penstock.cli import cluster_create

    raise typer.Exit(cluster_create.create(directory, count, base_port, replace, Voice(is_json)))


@app.command(help=cluster_help.START)
def start(directory: Directory = DEFAULT_DIRECTORY, is_json: Json = False) -> None:
    """Start the nodes of a directory again."""
    from penstock.cli import cluster_create

    raise typer.Exit(cluster_create.start(directory, Voice(is_json)))


@app.command(help=cluster_help.STOP)
def stop(directory: Directory = DEFAULT_DIRECTORY, is_json: Json = False) -> None:
    """Stop the nodes of a directory."""
    from penstock.cli import cluster_create

    raise typer.Exit(cluster_create.stop(directory, Voice(is_json)))


@app.command(help=cluster_help.STATUS)
def status(
    address: Annotated[
        str | None, typer.Argument(metavar="ADDRESS", help=f"The node to ask first.{DEFAULT_NODE}", show_default=False)
    ] = None,
    is_json: Annotated[bool, typer.Option("--json", help="One line of JSON, for programs.")] = False,
    watch: Annotated[
        float | None, typer.Option("--watch", metavar="SECONDS", min=0.1, help="Look again so often, until Ctrl-C.")
    ] = None,
    password: Password = None,
    tls: Tls = False,
    ca: Ca = None,
    cert: Cert = None,
    key: Key = None,
) -> None:
    """Show the nodes of a cluster."""
    from penstock.cli import cluster_status

    way = access(password, tls, ca, cert, key)
    raise typer.Exit(cluster_status.status(way, _asked(address), is_json, watch))


@app.command(help=cluster_help.ADD)
def add(
    address: NodeAddress,
    to: Annotated[str, typer.Option("--to", metavar="ADDRESS", help="A node of the cluster.", show_default=False)],
    force: Force = False,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", min=0, help="How long all may take to see it.")
    ] = 60,
    is_json: Json = False,
    password: Password = None,
    tls: Tls = False,
    ca: Ca = None,
    cert: Cert = None,
    key: Key = None,
) -> None:
    """Take a node into a cluster."""
    from penstock.cli import cluster_change

    way = access(password, tls, ca, cert, key)
    code = cluster_change.add(way, parse_address(address), parse_address(to), force, timeout, Voice(is_json))
    raise typer.Exit(code)


@app.command(help=cluster_help.DRAIN)
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
    """Empty a node."""
    from penstock.cli import cluster_drain

    way = access(password, tls, ca, cert, key)
    raise typer.Exit(cluster_drain.drain(way, parse_address(address), Voice(is_json), timeout))


@app.command(help=cluster_help.REMOVE)
def remove(
    address: NodeAddress,
    shutdown: Annotated[bool, typer.Option("--shutdown", help="Stop the node in the end.")] = False,
    force: Force = False,
    timeout: Timeout = None,
    is_json: Json = False,
    password: Password = None,
    tls: Tls = False,
    ca: Ca = None,
    cert: Cert = None,
    key: Key = None,
) -> None:
    """Take a node out of its cluster."""
    from penstock.cli import cluster_change

    way = access(password, tls, ca, cert, key)
    code = cluster_change.remove(way, parse_address(address), shutdown, force, timeout, Voice(is_json))
    raise typer.Exit(code)


@app.command(help=cluster_help.FORGET)
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
    """Let all nodes forget a dead one."""
    from penstock.cli import cluster_change

    way = access(password, tls, ca, cert, key)
    raise typer.Exit(cluster_change.forget(way, node, _asked(at), force, Voice(is_json)))
