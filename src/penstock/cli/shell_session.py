"""One user's talk with a node: runs commands, prints replies, and keeps the link alive between them.

A link that broke while nobody used it is opened again without a word. If it breaks while a command is under
way, only a command that changes nothing is sent again: an ADDJOB sent twice might be two jobs.
"""

import os
import sys
import time
from collections.abc import Callable

from penstock.cli import shell_format
from penstock.cli.shell_options import Options
from penstock.client.connection import Connection, Decoder, hiredis_decoder
from penstock.errors import AuthenticationError, ConnectionLost, PeerError, ReplyError
from penstock.wire.reply_reader import ReplyReader

# Texts made for reading: quoting them would only hide their lines.
_ALWAYS_RAW = {
    (b"info",), (b"cluster", b"nodes"), (b"cluster", b"info"), (b"client", b"list"),
    (b"latency", b"graph"), (b"latency", b"doctor"),
}  # fmt: skip


def connection(options: Options, decoder: Callable[[], Decoder] = hiredis_decoder) -> Connection:
    """A connection as the options ask for, not yet open and without the password: see `open_link`."""
    return Connection(
        options.host,
        options.port,
        path=options.socket,
        tls=options.tls,
        ca=options.ca,
        cert=options.cert,
        key=options.key,
        decoder=decoder,
    )


def open_link(link: Connection, options: Options) -> None:
    """Connect and authenticate. A refused password is a warning: commands will say what they think of it."""
    link.connect()
    if options.password is None:
        return
    try:
        link.execute("AUTH", options.password)
    except ReplyError as error:
        print(f"Warning: AUTH failed: {shell_format.printable(str(error))}", file=sys.stderr)


def wants_color() -> bool:
    """Colours only for a terminal that has them, and for a user who has not declined them."""
    declined = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return sys.stdout.isatty() and not declined


class Session:
    """Runs commands of one user. `errors` counts the error replies so far."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.errors = 0
        self.link = connection(options, ReplyReader)
        faked = "FAKETTY" in os.environ  # the original tool's way to get the human form in a pipe
        self._output = options.output or ("human" if sys.stdout.isatty() or faked else "raw")
        self._color = wants_color()

    def connect(self) -> None:
        """Open the link if there is none. Raises ConnectionLost."""
        if not self.link.connected:
            open_link(self.link, self.options)

    def connect_to(self, host: str, port: int) -> None:
        """Leave this node for another."""
        self.link.close()
        self.options.host, self.options.port, self.options.socket = host, port, None
        self.link = connection(self.options, ReplyReader)
        self.connect()

    def run(self, words: list[bytes]) -> None:
        """Run one command and print what it answers. Raises PeerError."""
        reply = self._ask(words)
        if reply is not None:
            self.show(reply[0], words)
        if words[0].lower() == b"monitor" and reply is not None and not isinstance(reply[0], ReplyError):
            self._stream()

    def repeat(self, words: list[bytes], times: int, interval_s: float) -> None:
        """Run a command several times; -1 is for ever."""
        done = 0
        while times < 0 or done < times:
            if done and interval_s:
                time.sleep(interval_s)
            self.run(words)
            done += 1

    def _ask(self, words: list[bytes]) -> tuple[object] | None:
        """The reply in a tuple, for it may be None; no tuple if the command ended the node."""
        name = words[0].decode("utf-8", "replace").lower()
        self.link.alive()  # finds out about a link that broke while idle
        self.connect()
        try:
            return (self._exchange(words),)
        except ConnectionLost:
            if name == "shutdown":
                return None
            if not _harmless(name):
                raise
        self.connect()
        return (self._exchange(words),)

    def _exchange(self, words: list[bytes]) -> object:
        try:
            self.link.send(*words)
            return self.link.receive()
        except KeyboardInterrupt:
            # The reply may still come, and would be taken for the next command's.
            self.link.close()
            raise

    def _stream(self) -> None:
        try:
            while True:
                self.show(self.link.receive(), [])
        except KeyboardInterrupt:  # the way to end it
            if sys.stdout.isatty():
                print()
        finally:
            self.link.close()  # there is no command to end MONITOR

    def show(self, reply: object, words: list[bytes]) -> None:
        """Print a reply in the form that was asked for."""
        self.errors += isinstance(reply, ReplyError)
        sys.stdout.buffer.write(self._formatted(reply, words))
        sys.stdout.buffer.flush()

    def _formatted(self, reply: object, words: list[bytes]) -> bytes:
        if self._output == "json":
            return shell_format.as_json(reply)
        if self._output == "csv":
            return shell_format.csv(reply)
        lowered = tuple(word.lower() for word in words[:2])
        readable = (lowered in _ALWAYS_RAW or lowered[:1] in _ALWAYS_RAW) and isinstance(reply, bytes)
        if self._output == "raw" or readable:
            return shell_format.raw(reply, os.fsencode(self.options.delimiter))
        return shell_format.human(reply, color=self._color)


def _harmless(name: str) -> bool:
    """Whether a command changes nothing, so that it may be sent again."""
    # Imported here, since one command that goes well needs no table, and starts faster without it.
    from penstock.broker.commands.table import COMMANDS

    info = COMMANDS.get(name)
    return info is not None and "readonly" in info.flags and "admin" not in info.flags


def describe(error: PeerError) -> str:
    """An error of the link, with what to do about it."""
    text = str(error)
    if isinstance(error, AuthenticationError):
        return f"{text} Use -a or PENSTOCK_PASSWORD."
    if "refused" in text or "No such file" in text:
        return f"{text}\nIs a node running there? Start one with: penstock server"
    return text
