"""Connections of `penstock cluster` to nodes, with one password and one set of TLS files for all of them.

Every failure is a PeerError, whose text names the node and says what is wrong and what to do.
"""

from __future__ import annotations

import shlex
import ssl
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from penstock.client.addresses import Address
from penstock.client.connection import Connection, Word, tls_context
from penstock.errors import AuthenticationError, BadReply, CallerError, PeerError, ReplyError

# A node that works answers in milliseconds; one whose disk is slow, or that has much to scan, within a second or two.
ANSWER_SECONDS = 5.0
ASKED_AT_ONCE = 16  # nodes, each by a thread: a few that don't answer don't delay the others

T = TypeVar("T")


@dataclass(frozen=True)
class Access:
    """The password and the TLS files for all nodes of a cluster."""

    password: str | None = None
    tls: ssl.SSLContext | None = None

    def open(self, address: Address) -> Connection:
        """Connect to a node. Raises PeerError that says what to do."""
        try:
            return self._open(address, self.password)
        except AuthenticationError as error:
            if "no password is set" not in str(error):
                raise PeerError(f"{address}: {error}{_hint(error)}") from error
        except PeerError as error:
            raise PeerError(f"{error}{_hint(error)}") from error
        return self._open(address, None)

    def _open(self, address: Address, password: str | None) -> Connection:
        link = Connection(address.host, address.port, password=password, tls=self.tls or False, timeout=ANSWER_SECONDS)
        link.connect()
        return link

    def run(self, address: Address, *words: Word) -> Any:
        """Run one command on a node. Raises PeerError that names it."""
        link = self.open(address)
        try:
            return execute(link, *words)
        finally:
            link.close()


def access(password: str | None, tls: bool, ca: str | None, cert: str | None, key: str | None) -> Access:
    """Return the access that the options describe; TLS files imply --tls, as with `penstock cli`."""
    if key and not cert:
        raise CallerError("--key needs --cert, the certificate of the key.")
    return Access(password or None, tls_context(ca, cert, key) if tls or ca or cert else None)


def execute(link: Connection, *words: Word) -> Any:
    """Run a command on an open link. Raises PeerError that names the node."""
    return checked(link, fetch(link, [words])[0])


def fetch(link: Connection, commands: Iterable[Iterable[Word]]) -> list[Any]:
    """Run commands in one round trip; error replies are among the replies. Raises PeerError if the link fails."""
    try:
        return link.pipeline([tuple(words) for words in commands])
    except PeerError as error:
        raise PeerError(f"{error}{_hint(error)}") from error


def checked(link: Connection, reply: Any) -> Any:
    """Return a reply; raises PeerError for an error reply."""
    if isinstance(reply, ReplyError):
        raise PeerError(f"{link.address}: {reply}{_hint(reply)}") from reply
    return reply


def not_a_node(link: Connection, reply: object) -> PeerError:
    """Return an error about a server that is not a node."""
    text = reply.decode("utf-8", "replace") if isinstance(reply, bytes) else str(reply)
    return PeerError(
        f"{link.address} is not a Penstock or Disque node: it answered {text[:100]}\n"
        "Use the port that clients of the node use."
    )


def _hint(error: PeerError) -> str:
    text = str(error)
    if isinstance(error, AuthenticationError) or text.startswith("NOAUTH"):
        return " Use --password or the variable PENSTOCK_PASSWORD."
    if isinstance(error, BadReply):
        return "\nGive the port that clients of the node use; if it speaks TLS there, add --tls."
    if "refused" in text:
        return "\nIs a node running there?"
    return ""


def at_each(work: Callable[[Address], T], addresses: Iterable[Address]) -> dict[Address, T | PeerError]:
    """Call a function for many nodes at the same time. The result of a node that fails is its error."""

    def attempt(address: Address) -> T | PeerError:
        try:
            return work(address)
        except PeerError as error:
            return error

    wanted = list(dict.fromkeys(addresses))
    with ThreadPoolExecutor(ASKED_AT_ONCE) as pool:
        return dict(zip(wanted, pool.map(attempt, wanted), strict=True))


def one_line(error: PeerError) -> str:
    """Return an error without the advice below it, for tables."""
    return str(error).partition("\n")[0]


def typed_command(address: Address, *words: str) -> str:
    """Return a command of `penstock cli` for a person to type."""
    host = "" if address.host == "127.0.0.1" else f" -h {shlex.quote(address.host)}"
    return f"penstock cli{host} -p {address.port} {' '.join(words)}"
