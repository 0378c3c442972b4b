"""A session with a node: runs commands, prints replies, and keeps the link open between them.

A link that broke while it was idle is opened again silently. If it breaks while a command runs, the command is sent
again only if it changes nothing: an ADDJOB that is sent twice may become two jobs.
"""

import os
import sys
import time
from collections.abc import Callable

from penstock.cli.shell import formats
from penstock.cli.shell.options import ShellOptions
from penstock.client.connection import Connection, Decoder, hiredis_decoder
from penstock.errors import AuthenticationError, CallerError, ConnectionLost, PeerError, ReplyError
from penstock.wire import split_words
from penstock.wire.reply_reader import ReplyReader

# Replies that are texts of several lines: quoted, they would be on one.
_ALWAYS_RAW = {
    (b"info",), (b"cluster", b"nodes"), (b"cluster", b"info"), (b"client", b"list"),
    (b"latency", b"graph"), (b"latency", b"doctor"),
}  # fmt: skip


def connection(options: ShellOptions, decoder: Callable[[], Decoder] = hiredis_decoder) -> Connection:
    """Return a connection for the options, not yet open and without the password: see `open_link`."""
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


def open_link(link: Connection, options: ShellOptions) -> None:
    """Connect and authenticate. A wrong password is only a warning: commands that need it will fail."""
    link.connect()
    if options.password is None:
        return
    try:
        link.execute("AUTH", options.password)
    except ReplyError as error:
        print(f"Warning: AUTH failed: {formats.printable(str(error))}", file=sys.stderr)


def wants_color() -> bool:
    """Whether to print colours: on a terminal that has them, unless NO_COLOR is set."""
    declined = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return sys.stdout.isatty() and not declined


class Session:
    """Runs commands. `errors` is the number of error replies so far."""

    def __init__(self, options: ShellOptions) -> None:
        self.options = options
        self.errors = 0
        self.link = connection(options, ReplyReader)
        faked = "FAKETTY" in os.environ  # the original tool's way to get the human form in a pipe
        self._output = options.output or ("human" if sys.stdout.isatty() or faked else "raw")
        self._color = wants_color()

    def connect(self) -> None:
        """Open the link if it is not open. Raises ConnectionLost."""
        if not self.link.connected:
            open_link(self.link, self.options)

    def connect_to(self, host: str, port: int) -> None:
        """Connect to another node."""
        self.link.close()
        self.options.host, self.options.port, self.options.socket = host, port, None
        self.link = connection(self.options, ReplyReader)
        self.connect()

    def run(self, words: list[bytes]) -> None:
        """Run one command and print its reply. Raises PeerError."""
        reply = self._ask(words)
        if reply is not None:
            self.show(reply[0], words)
        if words[0].lower() == b"monitor" and reply is not None and not isinstance(reply[0], ReplyError):
            self._stream()

    def repeat(self, words: list[bytes], times: int, interval_s: float) -> None:
        """Run a command several times; -1 is without end."""
        done = 0
        while times < 0 or done < times:
            if done and interval_s:
                time.sleep(interval_s)
            self.run(words)
            done += 1

    def _ask(self, words: list[bytes]) -> tuple[object] | None:
        """Return the reply in a tuple, as it may be None; None if the command stopped the node."""
        name = words[0].decode("utf-8", "replace").lower()
        self.link.alive()  # notices a link that broke while idle
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
            # The reply may still come, and would be taken for that of the next command.
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
            self.link.close()  # no command ends MONITOR

    def show(self, reply: object, words: list[bytes]) -> None:
        """Print a reply in the chosen format."""
        self.errors += isinstance(reply, ReplyError)
        sys.stdout.buffer.write(self._formatted(reply, words))
        sys.stdout.buffer.flush()

    def _formatted(self, reply: object, words: list[bytes]) -> bytes:
        if self._output == "json":
            return formats.as_json(reply)
        if self._output == "csv":
            return formats.csv(reply)
        lowered = tuple(word.lower() for word in words[:2])
        readable = (lowered in _ALWAYS_RAW or lowered[:1] in _ALWAYS_RAW) and isinstance(reply, bytes)
        if self._output == "raw" or readable:
            return formats.raw(reply, os.fsencode(self.options.delimiter))
        return formats.human(reply, color=self._color)


def _harmless(name: str) -> bool:
    """Whether a command changes nothing, so that it can be sent again."""
    # Imported here: a command that succeeds doesn't need the table, and starts faster without it.
    from penstock.broker.commands.table import COMMANDS

    info = COMMANDS.get(name)
    return info is not None and "readonly" in info.flags and "admin" not in info.flags


def describe(error: PeerError) -> str:
    """Return the text of a link's error, with what to do about it."""
    text = str(error)
    if isinstance(error, AuthenticationError):
        return f"{text} Use -a or PENSTOCK_PASSWORD."
    if "refused" in text or "No such file" in text:
        return f"{text}\nIs a node running there? Start one with: penstock server"
    return text


# What a person types.


def split_line(line: str) -> list[bytes]:
    """Return the words of a line. Raises CallerError if quotes are not closed."""
    # A terminal passes bytes that are not UTF-8 as surrogates: they are sent as they came.
    try:
        return split_words(line.encode("utf-8", "surrogateescape"))
    except ValueError as error:
        raise CallerError(f"Invalid argument(s): {error}") from None


def repetition(words: list[bytes]) -> tuple[int, list[bytes]]:
    """Return how often to run a command, and the command: `5 PING` is PING five times."""
    if len(words) > 1 and words[0].isdigit():
        return int(words[0]), words[1:]
    return 1, words
