"""Commands about the connection itself: PING, AUTH, HELLO and CLIENT."""

from __future__ import annotations

from collections.abc import Callable
from hmac import compare_digest
from typing import TYPE_CHECKING

from penstock.broker.clients import REPLY_OFF, REPLY_ON, REPLY_SKIP_NEXT, Client
from penstock.broker.commands.arguments import SYNTAX_ERROR, integer_argument, timeout_argument, to_integer
from penstock.broker.commands.information import release
from penstock.broker.commands.subcommands import ANY, Subcommand, find
from penstock.broker.core.membership import MYSELF, Peer
from penstock.broker.core.refusals import Refused
from penstock.wire.replies import OK, Value, array, bulk, encode_value, error, integer

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

HELLO_FORMAT = 1  # the version of Disque's reply to HELLO
PROTOCOLS = (2, 3)
USER = b"default"  # the one user there is, for clients that must name one
NAME_BYTES_MAX = 1024  # every client keeps its name and its library's: no real one is longer

NO_ARITY = ("ERR", "wrong number of arguments for 'ping' command")
NO_PASSWORD_SET = ("ERR", "Client sent AUTH, but no password is set")
WRONG_PASSWORD = ("ERR", "invalid password")
NOT_AUTHENTICATED = ("NOAUTH", "Authentication required.")
NOT_AUTHENTICATED_HELLO = (
    "NOAUTH",
    (
        "HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> "
        "<pass> option can be used to authenticate the client and select the RESP protocol version at the "
        "same time"
    ),
)
NO_PROTOCOL = ("NOPROTO", "unsupported protocol version")
BAD_PROTOCOL = ("ERR", "Protocol version is not an integer or out of range")
WRONG_PAIR = ("WRONGPASS", "invalid username-password pair or user is disabled.")
BAD_NAME = ("ERR", "Client names cannot contain spaces, newlines or special characters.")
LONG_NAME = ("ERR", f"Client names can be at most {NAME_BYTES_MAX} bytes long.")
NO_CLIENT = ("ERR", "No such client")
CLIENT_HELP = ("ERR", "Syntax error, try CLIENT (LIST | KILL ip:port | GETNAME | SETNAME connection-name)")


def ping(broker: Broker, client: Client, args: list[bytes]) -> bytes | None:
    """PING [message]."""
    if len(args) > 2:
        raise Refused(*NO_ARITY)
    return bulk(args[1]) if len(args) == 2 else b"+PONG\r\n"


def auth(broker: Broker, client: Client, args: list[bytes]) -> bytes | None:
    """AUTH password: a wrong one takes back what a right one gave."""
    password = broker.config.requirepass
    if not password:
        raise Refused(*NO_PASSWORD_SET)
    client.authenticated = compare_digest(args[1], password)
    if not client.authenticated:
        raise Refused(*WRONG_PASSWORD)
    return OK


# HELLO


def hello(broker: Broker, client: Client, args: list[bytes]) -> bytes | None:
    """HELLO: the nodes to choose from. HELLO 2|3 ...: the protocol to go on with, as Redis has it."""
    if len(args) > 1:
        return _greet(broker, client, args)
    if not _is_let_in(broker, client):
        raise Refused(*NOT_AUTHENTICATED)
    cluster = broker.node.cluster
    peers = sorted(cluster.peers.values(), key=lambda peer: not peer.flags & MYSELF)
    rows = [_peer_row(broker, peer) for peer in peers]
    return array([integer(HELLO_FORMAT), bulk(cluster.my_id), *rows])


def _peer_row(broker: Broker, peer: Peer) -> bytes:
    port = broker.config.port if peer.flags & MYSELF else peer.port
    fields = (peer.id, peer.ip.encode(), b"%d" % port, b"%d" % peer.priority())
    return array(map(bulk, fields))


def _is_let_in(broker: Broker, client: Client) -> bool:
    return client.authenticated or not broker.config.requirepass


def _greet(broker: Broker, client: Client, args: list[bytes]) -> bytes:
    """All options are read before any of them takes effect."""
    protocol = to_integer(args[1])
    if protocol is None:
        raise Refused(*BAD_PROTOCOL)
    if protocol not in PROTOCOLS:
        raise Refused(*NO_PROTOCOL)
    name: bytes | None = None
    pair: tuple[bytes, bytes] | None = None
    at = 2
    while at < len(args):
        word, values = args[at].upper(), args[at + 1 :]
        if word == b"AUTH" and len(values) >= 2:
            pair = (values[0], values[1])
            at += 3
        elif word == b"SETNAME" and values:
            name = _checked_name(values[0])
            at += 2
        else:
            return error(b"ERR Syntax error in HELLO option '%b'" % args[at])
    if pair is not None:
        _log_in(broker, client, *pair)
    if not _is_let_in(broker, client):
        raise Refused(*NOT_AUTHENTICATED_HELLO)
    if name is not None:
        client.name = name
    client.speak(protocol)
    facts: dict[Value, Value] = {
        b"server": b"penstock",
        b"version": release().encode(),
        b"proto": protocol,
        b"id": client.id,
        b"mode": b"cluster",
        b"role": b"master",
        b"modules": [],
    }
    return encode_value(facts, protocol)


def _log_in(broker: Broker, client: Client, user: bytes, password: bytes) -> None:
    """Without a password set any is right: clients that always send one get in."""
    wanted = broker.config.requirepass
    if user != USER or (wanted and not compare_digest(password, wanted)):
        raise Refused(*WRONG_PAIR)
    client.authenticated = bool(wanted)


def _checked_name(name: bytes) -> bytes:
    """Let a name through that can stand in a line of CLIENT LIST; the empty one means none."""
    if not _is_printable(name):
        raise Refused(*BAD_NAME)
    if len(name) > NAME_BYTES_MAX:
        raise Refused(*LONG_NAME)
    return name


def _is_printable(word: bytes) -> bool:
    return all(0x21 <= byte <= 0x7E for byte in word)


# CLIENT


def client(broker: Broker, client: Client, args: list[bytes]) -> bytes | None:
    """CLIENT subcommand ..."""
    run = find(CLIENT_SUBCOMMANDS, args)
    if run is None:
        raise Refused(*CLIENT_HELP)
    return run(broker, client, args)


def _list(broker: Broker, client: Client, args: list[bytes]) -> bytes:
    # What a turn runs is noted at its end; the caller is to see itself as of this command.
    client.last_command = "client"
    client.active_ms = broker.node.now_ms
    return bulk(b"".join(_client_line(broker, other) for other in broker.clients.values()))


# Letter and when it is shown, in the order in which they are.
FLAGS: tuple[tuple[str, Callable[[Client], bool]], ...] = (
    ("O", lambda client: client.is_monitor),
    ("b", lambda client: client.waiter is not None),
    ("c", lambda client: client.closing),
    ("u", lambda client: client.waiter is None and bool(client.backlog)),
    ("U", lambda client: client.is_unix),
)


def _client_line(broker: Broker, client: Client) -> bytes:
    now_ms, sink = broker.node.now_ms, client.sink
    flags = "".join(letter for letter, is_set in FLAGS if is_set(client)) or "N"
    first = b"id=%d addr=%b %b name=" % (client.id, _address(client), sink.describe().encode())
    rest = (
        f" age={(now_ms - client.created_ms) // 1000} idle={(now_ms - client.active_ms) // 1000}"
        f" flags={flags} qbuf={sink.unread_bytes()} qbuf-free=0"
        f" obl={sum(map(len, client.out))} oll={len(client.out)} omem={sink.buffered_bytes()}"
        f" events=r cmd={client.last_command}\n"
    )
    return first + client.name + rest.encode()


def _address(client: Client) -> bytes:
    """The address of a Unix socket is a path, which may hold bytes that are not text."""
    return client.address.encode("utf-8", "surrogateescape")


def _kill(broker: Broker, client: Client, args: list[bytes]) -> bytes:
    """KILL ip:port, or KILL filter value ...: those that all filters let through."""
    if len(args) == 3:
        victims = [other for other in broker.clients.values() if _address(other) == args[2]]
        if not victims:
            raise Refused(*NO_CLIENT)
        _disconnect(broker, client, victims)
        return OK
    skip_me = True
    wanted: list[Callable[[Client], bool]] = []
    if len(args) < 4 or len(args) % 2:
        raise Refused(*SYNTAX_ERROR)
    for name, value in zip(args[2::2], args[3::2], strict=True):
        word = name.upper()
        if word == b"SKIPME" and value.upper() in (b"YES", b"NO"):
            skip_me = value.upper() == b"YES"
        elif word == b"TYPE" and value.upper() != b"NORMAL":
            return error(b"ERR Unknown client type '%b'" % value)
        elif word in KILL_FILTERS:
            wanted.append(KILL_FILTERS[word](value))
        else:
            raise Refused(*SYNTAX_ERROR)
    others = [other for other in broker.clients.values() if not skip_me or other is not client]
    victims = [other for other in others if all(fits(other) for fits in wanted)]
    _disconnect(broker, client, victims)
    return integer(len(victims))


def _has_id(value: bytes) -> Callable[[Client], bool]:
    wanted = integer_argument(value)
    return lambda client: client.id == wanted


def _has_address(value: bytes) -> Callable[[Client], bool]:
    return lambda client: _address(client) == value


def _is_normal(value: bytes) -> Callable[[Client], bool]:
    return lambda client: True


KILL_FILTERS: dict[bytes, Callable[[bytes], Callable[[Client], bool]]] = {
    b"ID": _has_id,
    b"ADDR": _has_address,
    b"TYPE": _is_normal,
}


def _disconnect(broker: Broker, client: Client, victims: list[Client]) -> None:
    for victim in victims:
        if victim is client:
            victim.closing = True  # its reply leaves first
            broker.touch(victim)
        else:
            # Forgotten at once, not when its socket says so: it must not be given a job in between.
            broker.disconnect(victim)
            victim.sink.close(now=True)


def _get_name(broker: Broker, client: Client, args: list[bytes]) -> bytes:
    return bulk(client.name) if client.name else client.null


def _set_name(broker: Broker, client: Client, args: list[bytes]) -> bytes:
    client.name = _checked_name(args[2])
    return OK


def _set_info(broker: Broker, client: Client, args: list[bytes]) -> bytes:
    key, value = args[2].lower(), args[3]
    if key not in (b"lib-name", b"lib-ver"):
        return error(b"ERR Unrecognized option '%b'" % args[2])
    if not _is_printable(value):
        return error(b"ERR %b cannot contain spaces, newlines or special characters." % key)
    if len(value) > NAME_BYTES_MAX:
        return error(b"ERR %b can be at most %d bytes long." % (key, NAME_BYTES_MAX))
    client.library[key] = value
    return OK


def _pause(broker: Broker, client: Client, args: list[bytes]) -> bytes:
    """PAUSE ms: hold back the requests of all clients, this one included."""
    broker.paused_until_ms = broker.node.now_ms + timeout_argument(args[2])
    return OK


def _reply(broker: Broker, client: Client, args: list[bytes]) -> bytes | None:
    """Only ON is answered. SKIP while replies are off changes nothing."""
    word = args[2].upper()
    if word == b"ON":
        client.reply_mode = REPLY_ON
        return OK
    if word == b"OFF":
        client.reply_mode = REPLY_OFF
    elif word != b"SKIP":
        raise Refused(*SYNTAX_ERROR)
    elif client.reply_mode != REPLY_OFF:
        client.reply_mode = REPLY_SKIP_NEXT
    return None


def _id(broker: Broker, client: Client, args: list[bytes]) -> bytes:
    return integer(client.id)


CLIENT_SUBCOMMANDS = {
    b"LIST": Subcommand(2, 2, _list),
    b"KILL": Subcommand(2, ANY, _kill),
    b"GETNAME": Subcommand(2, 2, _get_name),
    b"SETNAME": Subcommand(3, 3, _set_name),
    b"SETINFO": Subcommand(4, 4, _set_info),
    b"PAUSE": Subcommand(3, 3, _pause),
    b"REPLY": Subcommand(3, 3, _reply),
    b"ID": Subcommand(2, 2, _id),
}
