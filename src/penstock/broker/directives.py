"""Every directive there is, as one table.

A directive is a row: its name, the type of its value, its default, where it may be used, and the comment that
`penstock server --print-config` prints above it. A `ValueType` converts between the four forms of a value: the
words of a line in the config file, the argument of CONFIG SET, the reply of CONFIG GET, and the Python value
that the node uses.

Two rules hold here. A value is refused with a ValueError that says what is wrong and what to write instead;
the caller adds where the value came from. And the file and CONFIG SET have checks of their own: some values
are accepted by only one of them, as in Disque, and the table shows which.
"""

from __future__ import annotations

import enum
import os
import pathlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

INTEGER_MAX = 2**63 - 1  # what a peer's signed 64-bit integer holds
INT_MAX = 2**31 - 1  # what the system calls behind timeout, tcp-backlog and maxclients take
PORT_MAX = 65535
CLIENT_PORT_MAX = PORT_MAX - 10000  # the cluster bus listens on the client port + 10000
BIND_MAX = 16  # as in Disque: each is a listening socket
PASSWORD_BYTES_MAX = 512  # as in Disque
SECRET_BYTES_MIN = 16  # whoever hears a link begin can try secrets at leisure: a short one is soon found
KEEPALIVE_SECONDS = 300  # for CONFIG SET tcp-keepalive yes, which gives no number

_UNITS = {"": 1, "b": 1, "k": 10**3, "kb": 2**10, "m": 10**6, "mb": 2**20, "g": 10**9, "gb": 2**30}


def shown(word: bytes) -> str:
    """A word as an error message shows it: printable, and not longer than a line."""
    text = word[:100].decode("utf-8", "backslashreplace")
    return "'" + "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text) + "'"


def parse_integer(text: str) -> int:
    """A signed 64-bit integer in plain decimal: a sign and leading zeros are fine, blanks are not."""
    match = re.fullmatch(r"([+-]?)0*([0-9]{1,19})", text)
    number = int(match[1] + match[2]) if match else None
    if number is None or not -INTEGER_MAX - 1 <= number <= INTEGER_MAX:
        raise ValueError(f"{shown(os.fsencode(text))} is not a whole number")
    return number


def parse_memory(text: str) -> int:
    """A size in bytes: digits and a unit; k, m and g count in thousands, kb, mb and gb in 1024s."""
    match = re.fullmatch(r"0*([0-9]{1,19})([A-Za-z]*)", text)
    unit = _UNITS.get(match[2].lower()) if match else None
    size = int(match[1]) * unit if match and unit else INTEGER_MAX + 1
    if size > INTEGER_MAX:
        raise ValueError(f"{shown(os.fsencode(text))} is not a size: write digits and b, k, kb, m, mb, g or gb")
    return size


class ValueType:
    """One word for one value. `current` is the present value, for types that depend on it."""

    words_min = 1
    words_max = 1

    def from_file(self, words: list[bytes], current: Any) -> Any:
        return self.read(words[0])

    def from_set(self, value: bytes, current: Any) -> Any:
        return self.read(value)

    def read(self, word: bytes) -> Any:
        raise NotImplementedError

    def show(self, value: Any) -> bytes:
        """The answer of CONFIG GET."""
        return os.fsencode(str(value))

    def to_file(self, value: Any) -> list[bytes]:
        return [self.show(value)]


@dataclass(frozen=True)
class Number(ValueType):
    lowest: int = 0
    highest: int = INTEGER_MAX
    lowest_set: int | None = None  # where CONFIG SET allows another one than the file
    clamp: bool = False  # bring a value into the range in place of refusing it; CONFIG SET refuses one below 0

    def from_set(self, value: bytes, current: Any) -> int:
        # As every integer argument of a command: empty is 0, and a NUL ends it.
        digits = value.split(b"\0")[0] or b"0"
        return self._within(digits, self.lowest if self.lowest_set is None else self.lowest_set, 0)

    def read(self, word: bytes) -> int:
        return self._within(word, self.lowest)

    def _within(self, word: bytes, lowest: int, least: int = -INTEGER_MAX - 1) -> int:
        number = parse_integer(os.fsdecode(word))
        if self.clamp and number >= least:
            return min(max(number, lowest), self.highest)
        if not lowest <= number <= self.highest:
            raise ValueError(f"{number} is out of range: give a number from {lowest} to {self.highest}")
        return number


class KeepAlive(ValueType):
    """Seconds in the file, but only yes and no at run time."""

    _seconds = Number(0, INT_MAX)

    def read(self, word: bytes) -> int:
        return self._seconds.read(word)

    def from_set(self, value: bytes, current: Any) -> int:
        return (current or KEEPALIVE_SECONDS) if YesNo().read(value) else 0

    def show(self, value: int) -> bytes:
        return b"yes" if value else b"no"

    def to_file(self, value: int) -> list[bytes]:
        return [b"%d" % value]


@dataclass(frozen=True)
class Size(ValueType):
    lowest: int = 0
    lowest_set: int = 0  # what CONFIG SET allows
    set_units: bool = True

    def from_file(self, words: list[bytes], current: Any) -> int:
        return self._above(self.lowest, self.read(words[0]))

    def from_set(self, value: bytes, current: Any) -> int:
        size = self.read(value) if self.set_units else Number().from_set(value, current)
        return self._above(self.lowest_set, size)

    def _above(self, lowest: int, size: int) -> int:
        if size < lowest:
            raise ValueError(f"{size} is too small: give at least {lowest}")
        return size

    def read(self, word: bytes) -> int:
        return parse_memory(os.fsdecode(word))

    def to_file(self, value: int) -> list[bytes]:
        for unit in ("gb", "mb", "kb"):
            if value and value % _UNITS[unit] == 0:
                return [b"%d%s" % (value // _UNITS[unit], unit.encode())]
        return [b"%d" % value]


class YesNo(ValueType):
    def read(self, word: bytes) -> bool:
        if word.lower() not in (b"yes", b"no"):
            raise ValueError(f"{shown(word)} is neither yes nor no")
        return word.lower() == b"yes"

    def show(self, value: bool) -> bytes:
        return b"yes" if value else b"no"


@dataclass(frozen=True)
class Choice(ValueType):
    names: tuple[str, ...]

    def read(self, word: bytes) -> str:
        name = os.fsdecode(word.lower())
        if name not in self.names:
            raise ValueError(f"{shown(word)} is not one of {', '.join(self.names)}")
        return name


class Permissions(ValueType):
    def read(self, word: bytes) -> int:
        if not re.fullmatch(rb"0*[0-7]{1,3}", word):
            raise ValueError(f"{shown(word)} is not a file mode: write it in octal, 0 to 777")
        return int(word[-3:], 8)

    def show(self, value: int) -> bytes:
        return b"%o" % value


@dataclass(frozen=True)
class Path(ValueType):
    required: bool = False
    base_name: bool = False  # a file inside `dir`, not a path to one

    def read(self, word: bytes) -> str:
        if b"\0" in word:
            raise ValueError("a path can't hold a NUL byte: remove it")
        if self.required and word in (b"", b".", b".."):
            raise ValueError(f"{shown(word)} is not the name of a file: give one")
        if self.base_name and b"/" in word:
            raise ValueError(f"{shown(word)} is a path: give only a name, the file lies in dir")
        return os.fsdecode(word)


class DirectoryPath(ValueType):
    """Absolute once read; a relative one goes on from the one before, as a `cd` would."""

    def from_file(self, words: list[bytes], current: str) -> str:
        path = self.from_set(words[0], current)
        if not pathlib.Path(path).is_dir():
            raise ValueError(f"{shown(words[0])} is not a directory: create it, or name another")
        return path

    def from_set(self, value: bytes, current: str) -> str:
        if not value or b"\0" in value:
            raise ValueError(f"{shown(value)} is not the name of a directory: give one")
        return os.path.normpath(pathlib.Path(current, os.fsdecode(value)))


@dataclass(frozen=True)
class Password(ValueType):
    """A password, or a secret that only programs use, which must not be short."""

    bytes_min: int = 0

    def read(self, word: bytes) -> bytes:
        if word and len(word) < self.bytes_min:
            raise ValueError(f"the secret is {len(word)} bytes long: give at least {self.bytes_min}, at random")
        if len(word) > PASSWORD_BYTES_MAX:
            raise ValueError(f"the password is {len(word)} bytes long: give at most {PASSWORD_BYTES_MAX}")
        return word

    def show(self, value: bytes) -> bytes:
        return value


class Addresses(ValueType):
    words_max = BIND_MAX

    def from_file(self, words: list[bytes], current: Any) -> tuple[str, ...]:
        if words == [b""]:
            return ()
        if any(not word or b"\0" in word for word in words):
            raise ValueError('an address is empty or holds a NUL byte: bind "" alone means all interfaces')
        return tuple(os.fsdecode(word) for word in words)

    def show(self, value: tuple[str, ...]) -> bytes:
        return os.fsencode(" ".join(value))

    def to_file(self, value: tuple[str, ...]) -> list[bytes]:
        return [os.fsencode(address) for address in value] or [b""]


class OutputLimit(ValueType):
    """class, hard limit, soft limit, seconds. Disque has one class of clients, `normal`."""

    words_min = words_max = 4
    unused = (b"slave", b"pubsub")  # early config files of Disque still name them, as Redis' do

    def from_file(self, words: list[bytes], current: Any) -> tuple[int, int, int]:
        if words[0].lower() in self.unused:
            hard, soft, seconds = current
            return hard, soft, seconds
        if words[0].lower() != b"normal":
            raise ValueError(f"{shown(words[0])} is not a class of clients: the only one is normal")
        hard, soft = (parse_memory(os.fsdecode(word)) for word in words[1:3])
        return hard, soft, Number(0, INT_MAX).read(words[3])

    def from_set(self, value: bytes, current: Any) -> tuple[int, int, int]:
        words = value.split()
        if not words or len(words) % 4:
            raise ValueError(f"{shown(value)} is not of the form: normal hard soft seconds")
        # A class may be named more than once: the last one counts, but each must be right.
        if any(words[at].lower() in self.unused for at in range(0, len(words), 4)):
            raise ValueError(f"{shown(value)} names a class of clients that there isn't: the only one is normal")
        return [self.from_file(words[at : at + 4], current) for at in range(0, len(words), 4)][-1]

    def show(self, value: tuple[int, int, int]) -> bytes:
        return b"normal %d %d %d" % value

    def to_file(self, value: tuple[int, int, int]) -> list[bytes]:
        hard, soft, seconds = value
        return [b"normal", *Size().to_file(hard), *Size().to_file(soft), b"%d" % seconds]


class Renames(ValueType):
    """One line, one command; the value is all of them, old name to new, in the order of the lines."""

    words_min = words_max = 2

    def from_file(self, words: list[bytes], current: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
        old, new = words[0].lower(), words[1]
        if not old:
            raise ValueError("the name of the command is empty: give the one to rename")
        if old in current:
            raise ValueError(f"{shown(old)} is renamed already: remove one of the lines")
        taken = {name.lower() for name in current.values()} - current.keys()
        if new and new.lower() in taken:
            raise ValueError(f"another command is renamed to {shown(new)} already: choose another name")
        return {**current, old: new}


class Include(ValueType):
    """The loader reads the file; there is no value to keep."""


class Use(enum.Flag):
    """Where a directive may stand."""

    FILE = enum.auto()
    GET = enum.auto()
    SET = enum.auto()


@dataclass(frozen=True)
class Directive:
    name: str
    value_type: ValueType
    default: Any  # or a function that makes it
    use: Use
    comment: str
    example: str = ""  # printed as a comment by --print-config, for a directive that has no default to write

    @property
    def attribute(self) -> str:
        return self.name.replace("-", "_")

    def default_value(self) -> Any:
        return self.default() if callable(self.default) else self.default


# Each with those before it, for there is no directive that can be set and not be asked for.
_FILE, _GET, _SET = Use.FILE, Use.FILE | Use.GET, Use.FILE | Use.GET | Use.SET
_FACILITIES = ("user", *(f"local{number}" for number in range(8)))
_yes_no, _path, _count = YesNo(), Path(), Number()

# fmt: off
SECTIONS: tuple[tuple[str, tuple[Directive, ...]], ...] = (
    ("Network", (
        Directive("port", Number(0, CLIENT_PORT_MAX), 7711, _GET,
            "TCP port for clients; 0 takes none. The cluster bus listens on this port + 10000 (on tls-port + 10000 "
            "if this is 0; without either there is none)."),
        Directive("bind", Addresses(), (), _GET,
            'Addresses to listen on, up to 16; "" means every interface. The first one is also the address '
            "that connections to other nodes come from."),
        Directive("protected-mode", _yes_no, True, _SET,
            "Refuse clients of other hosts while there is no password, so that a "
            "node started in a hurry is not open to the network. Disque has no such directive."),
        Directive("tcp-backlog", Number(0, INT_MAX), 511, _GET,
            "How many connections may wait to be accepted. The kernel has a limit of its own "
            "(net.core.somaxconn)."),
        Directive("unixsocket", _path, "", _GET,
            'Path of a Unix socket to listen on as well; "" means none.'),
        Directive("unixsocketperm", Permissions(), 0, _GET,
            "Mode of that socket, in octal (700: only the user the node runs as); 0 leaves it to the "
            "umask."),
        Directive("timeout", Number(0, INT_MAX), 0, _SET,
            "Close a client that was idle for this many seconds; 0 never does. Clients that wait for a job "
            "are not idle."),
        Directive("tcp-keepalive", KeepAlive(), 0, _SET,
            "Seconds between probes that find dead clients; 0 sends none. CONFIG GET and SET know it only "
            "as yes and no."),
        Directive("maxclients", Number(1, INT_MAX), 10000, _SET,
            "Clients connected at once. It is lowered at the start when the process may not open that many "
            "files. When it is reached, a new connection takes the place of the oldest one that has not "
            "authenticated."),
        Directive("authentication-timeout", Number(0, INT_MAX), 60, _SET,
            "Close a connection that has not shown the password (requirepass) this many seconds after it was opened; "
            "0 never does."),
        Directive("client-output-buffer-limit", OutputLimit(), (0, 0, 0), _SET,
            "Disconnect a client that doesn't read its replies: at once when more than the first size "
            "waits, or when more than the second size waits for that many seconds. 0: no limit. The "
            "class is always normal."),
    )),
    ("Security", (
        Directive("requirepass", Password(), b"", _SET,
            'Password that clients must send with AUTH, up to 512 bytes; "" asks for none. Keep this file '
            "unreadable to others when you set it."),
        Directive("rename-command", Renames(), dict, _FILE,
            'Give a command another name, or none ("") to remove it. Once for each command.',
            example='rename-command DEBUG ""'),
        Directive("tls-port", Number(0, PORT_MAX), 0, _GET,
            "TCP port for clients that speak TLS; 0 takes none. It needs the two files below."),
        Directive("tls-cert-file", _path, "", _GET,
            "Certificate of this node, in PEM, with the chain up to the authority."),
        Directive("tls-key-file", _path, "", _GET,
            "Private key of that certificate, in PEM."),
        Directive("tls-ca-cert-file", _path, "", _GET,
            "Authorities whose certificates clients, and with tls-cluster other nodes, may show, in PEM."),
        Directive("tls-auth-clients", Choice(("yes", "no", "optional")), "optional", _GET,
            "Must a TLS client show a certificate? optional checks one where it is shown."),
        Directive("tls-cluster", _yes_no, False, _GET,
            "Speak TLS with other nodes. Both sides show their certificate (tls-cert-file, good for clients and "
            "servers), and it must be of an authority in tls-ca-cert-file; whose name or address it has isn't looked "
            "at, so let that authority sign nothing but nodes. All nodes of a cluster need the same setting: an "
            "original Disque node can't join."),
        Directive("cluster-secret", Password(bytes_min=SECRET_BYTES_MIN), b"", _FILE,
            "What a node must know to be let onto the cluster bus, 16 to 512 bytes, the same on all nodes; \"\" lets "
            "everybody who can reach the port in. It never travels, but what nodes say to each other does, unsealed: "
            "use tls-cluster, or both, where others may listen. Keep this file unreadable to others. With "
            "a secret an original Disque node can't join."),
    )),
    ("Process and log", (
        Directive("daemonize", _yes_no, False, _GET,
            "Go to the background once the node is ready, or end with 1 if it can't start. Leave it at no under "
            "systemd or in a container."),
        Directive("pidfile", _path, "/var/run/disque.pid", _GET,
            "File for the process id, written when the node goes to the background."),
        Directive("umask", Permissions(), 0o077, _FILE,
            "Permissions that new files of the node (journal, nodes.conf, log, pid, Unix socket) don't get, in octal: "
            "077 leaves them to the user that the node runs as; 027 lets the group read them."),
        Directive("loglevel", Choice(("debug", "verbose", "notice", "warning")), "notice", _SET,
            "How much to log: debug, verbose, notice or warning, from most to least."),
        Directive("logfile", _path, "", _GET,
            'File to log to; "" is the standard output.'),
        Directive("syslog-enabled", _yes_no, False, _FILE,
            "Log to the system log as well."),
        Directive("syslog-ident", _path, "disque", _FILE,
            "The name the node has in the system log."),
        Directive("syslog-facility", Choice(_FACILITIES), "local0", _GET,
            "The facility it logs under: user, or local0 to local7."),
        Directive("dir", DirectoryPath(), os.getcwd, _SET,
            "Working directory: the append-only file and the cluster's file lie here. CONFIG REWRITE "
            "writes it in its absolute form. It can't change while the journal is on."),
        Directive("include", Include(), None, _FILE,
            "Read another file here, as if it stood in this place. A later line wins over an earlier one, "
            "so include first what this file shall override.",
            example="include /etc/penstock/common.conf"),
        Directive("hz", Number(1, 500, clamp=True), 10, _SET,
            "How many times a second the node does its housekeeping; brought into 1 to 500 (CONFIG SET refuses "
            "a number below 0). More costs idle CPU."),
        Directive("activerehashing", _yes_no, True, _SET,
            "Accepted so that files of Disque load. It does nothing."),
        Directive("databases", Number(1, INT_MAX), 16, _GET,
            "Accepted so that files of Disque load. It does nothing."),
    )),
    ("Memory", (
        Directive("maxmemory", Size(lowest=1), 2**30, _SET,
            "Memory for jobs, queues and buffers. From 75 % on new jobs go to other nodes, from 95 % on "
            "they are refused unless the policy finds something to evict."),
        Directive("maxmemory-policy", Choice(("acks", "noeviction")), "acks", _SET,
            "What may go when memory runs out: acks removes jobs that are acknowledged, or delivered and "
            "never to be delivered again; noeviction removes nothing."),
        Directive("maxmemory-clients", Size(), 0, _SET,
            "Memory for what all clients together have sent and not finished, or have not read yet; 0 is a quarter of "
            "maxmemory, and at least 16mb. Beyond it, those who hold the most are closed. A request can't be larger, "
            "and one reply takes at most half of it: GETJOB and CLAIM give fewer jobs then."),
        Directive("maxmemory-unauthenticated", Size(lowest=2**20, lowest_set=2**20), 32 * 2**20, _SET,
            "The same for all connections that have not authenticated, with what the connections take by themselves. "
            "It isn't a part of maxmemory."),
        Directive("maxmemory-samples", Number(1, INT_MAX), 5, _SET,
            "Accepted so that files of Disque load. It does nothing."),
    )),
    ("Append-only file", (
        Directive("appendonly", _yes_no, True, _SET,
            "Keep a journal of jobs on disk, and read it at the start. Disque's default is no; here a job "
            "that was accepted outlives a restart unless you say otherwise."),
        Directive("appendfilename", Path(required=True, base_name=True), "disque.aof", _FILE,
            "Name of the journal, a file in dir."),
        Directive("appendfsync", Choice(("always", "everysec", "no")), "everysec", _SET,
            "When the journal is forced to the disk: always before a reply, everysec once a second (a "
            "power failure costs up to two seconds of jobs), no when the system likes to."),
        Directive("no-appendfsync-on-rewrite", _yes_no, False, _GET,
            "Accepted so that files of Disque load. It does nothing: a rewrite here doesn't hold up the forcing."),
        Directive("auto-aof-rewrite-percentage", Number(0, INT_MAX), 100, _SET,
            "Rewrite the journal when it has grown by this much since the last time; 0 never does."),
        Directive("auto-aof-rewrite-min-size", Size(set_units=False), 64 * 2**20, _SET,
            "But not while it is smaller than this. CONFIG SET takes it as a plain number of bytes."),
        Directive("aof-rewrite-incremental-fsync", _yes_no, True, _SET,
            "Accepted so that files of Disque load. A rewrite is always forced to the disk in pieces of 32 MB."),
        Directive("aof-load-truncated", _yes_no, True, _SET,
            "Start with a journal whose last record is incomplete, as after a power failure, and cut that "
            "record off; no stops with an error."),
        Directive("aof-enqueue-jobs-once", _yes_no, False, _SET,
            "At the next start put the jobs of the journal into their queues at once, then go back to no "
            "by itself. For a planned restart of a whole cluster: set it, CONFIG REWRITE, SHUTDOWN "
            "REWRITE-AOF, start."),
    )),
    ("Events", (
        Directive("events-dir", _path, "", _GET,
            "Directory in which the node writes down what happens to each job, for the data pipeline; a folder in it "
            'is the node\'s own. "" writes nothing. A disk that is slow or full delays and refuses no command.'),
        Directive("events-max-bytes", Size(lowest=2**20), 2**30, _GET,
            "Size of this node's events on the disk. Beyond it the oldest are deleted."),
        Directive("events-bodies", Size(), 0, _GET,
            "Keep the bodies of new jobs up to this size with the events, so that jobs can be replayed; 0 keeps none."),
    )),
    ("Cluster", (
        Directive("cluster-config-file", Path(required=True), "nodes.conf", _FILE,
            "File in which the node keeps its own id and the nodes it knows. The node writes it; don't "
            "edit it, and don't share it between nodes."),
        Directive("cluster-node-timeout", Number(1, lowest_set=0), 15000, _SET,
            "Milliseconds after which a node that doesn't answer is taken for failed."),
    )),
    ("Slow commands and latency", (
        Directive("slowlog-log-slower-than", Number(-INTEGER_MAX - 1, lowest_set=0), 10000, _SET,
            "Note commands that took more than this many microseconds in SLOWLOG; 0 notes all, a negative "
            "number none (and can be given only here)."),
        Directive("slowlog-max-len", Number(0, INT_MAX), 128, _SET,
            "How many of them to keep."),
        Directive("latency-monitor-threshold", _count, 0, _SET,
            "Note events that took at least this many milliseconds for LATENCY; 0 notes none."),
        Directive("watchdog-period", _count, 0, Use.GET | Use.SET,
            "Accepted so that tools of Disque work. It does nothing."),
    )),
)
# fmt: on

DIRECTIVES: dict[str, Directive] = {row.name: row for _, rows in SECTIONS for row in rows}

# fmt: off
_DISQUE_ORDER = (
    "requirepass", "unixsocket", "logfile", "pidfile", "maxmemory", "maxmemory-samples", "timeout",
    "auto-aof-rewrite-percentage", "auto-aof-rewrite-min-size", "slowlog-log-slower-than",
    "latency-monitor-threshold", "slowlog-max-len", "port", "tcp-backlog", "databases", "maxclients",
    "watchdog-period", "hz", "cluster-node-timeout", "tcp-keepalive", "no-appendfsync-on-rewrite",
    "daemonize", "activerehashing", "aof-rewrite-incremental-fsync", "aof-load-truncated",
    "aof-enqueue-jobs-once", "maxmemory-policy", "loglevel", "appendfsync", "syslog-facility", "appendonly",
    "dir", "client-output-buffer-limit", "unixsocketperm", "bind",
)
# fmt: on

# CONFIG GET answers Disque's directives in Disque's order, then ours.
GET_ORDER: tuple[Directive, ...] = tuple(
    [DIRECTIVES[name] for name in _DISQUE_ORDER]
    + [row for row in DIRECTIVES.values() if Use.GET in row.use and row.name not in _DISQUE_ORDER]
)
