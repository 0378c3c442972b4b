"""The blocking connection, against a server that answers what a test tells it to."""

import datetime
import ipaddress
import socket
import ssl
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.client import Connection
from penstock.client.connection import Decoder, hiredis_decoder
from penstock.errors import (
    AuthenticationError,
    BadReply,
    CallerError,
    ConnectionLost,
    PeerError,
    ReplyError,
    TimedOut,
)
from penstock.wire.reply_reader import ReplyReader, SimpleString
from tests.unit.client.scripted_server import Scripted, always, server


def test_every_type_of_reply_becomes_a_value() -> None:
    reply = b"*6\r\n:7\r\n+status\r\n$3\r\na\r\n\r\n$-1\r\n*-1\r\n*1\r\n:1\r\n"
    with server(always(reply)) as peer, Connection(port=peer.port) as link:
        assert link.execute("ANY") == [7, b"status", b"a\r\n", None, None, [1]]


def test_the_decoder_of_the_command_line_keeps_status_and_bulk_apart() -> None:
    reply = b"*2\r\n+OK\r\n$2\r\nOK\r\n"
    with server(always(reply)) as peer, Connection(port=peer.port, decoder=ReplyReader) as link:
        assert [type(item) for item in link.execute("ANY")] == [SimpleString, bytes]


def test_an_error_reply_is_raised_with_its_code_and_text() -> None:
    with (
        server(always(b"-NOREPL Not enough reachable nodes\r\n")) as peer,
        Connection(port=peer.port) as link,
        pytest.raises(ReplyError) as caught,
    ):
        link.execute("ADDJOB", "q", "b", 0)
    assert (caught.value.code, caught.value.message) == ("NOREPL", "Not enough reachable nodes")


def test_words_go_out_byte_for_byte() -> None:
    with server(always(b"+OK\r\n")) as peer, Connection(port=peer.port) as link:
        link.execute("ADDJOB", "käse", b"\x00\xff\r\n", 0, bytearray(b"x"), 1.5)
        assert peer.requests == [[b"ADDJOB", "käse".encode(), b"\x00\xff\r\n", b"0", b"x", b"1.5"]]


@pytest.mark.parametrize("words", [(), ("PING", None), ("PING", ["x"]), ("PING", "\udc80")])
def test_words_that_cannot_be_sent_are_the_callers_error_and_send_nothing(words: tuple[str, ...]) -> None:
    with server(always(b"+OK\r\n")) as peer, Connection(port=peer.port) as link:
        with pytest.raises(CallerError):
            link.execute(*words)
        assert link.execute("PING") == b"OK"
        assert peer.requests == [[b"PING"]]


def test_a_pipeline_returns_replies_in_order_with_errors_as_values() -> None:
    def answer(request: list[bytes]) -> bytes:
        return b"-ERR no\r\n" if request[1] == b"1" else b":%s\r\n" % request[1]

    with server(answer) as peer, Connection(port=peer.port) as link:
        first, second, third = link.pipeline([("N", n) for n in range(3)])
    assert (first, str(second), third) == (0, "ERR no", 2)
    assert isinstance(second, ReplyError)


def test_an_empty_pipeline_sends_nothing() -> None:
    with server(always(b"+OK\r\n")) as peer, Connection(port=peer.port) as link:
        assert link.pipeline([]) == []
        assert peer.requests == []


def test_a_pipeline_of_large_replies_does_not_wait_for_a_server_that_waits_for_us() -> None:
    def echo(request: list[bytes]) -> bytes:
        return b"$%d\r\n%s\r\n" % (len(request[1]), request[1])

    body = b"x" * 20_000
    with server(echo) as peer, Connection(port=peer.port, timeout=5) as link:
        assert link.pipeline([("PING", body)] * 1000) == [body] * 1000


def test_a_lost_connection_is_reported_and_the_command_not_sent_again() -> None:
    with server(always(b"")) as peer, Connection(port=peer.port) as link:
        link.send("ADDJOB", "q", "b", 0)
        while not peer.requests:
            pass
        peer.hang_up()
        with pytest.raises(ConnectionLost, match=f"127.0.0.1:{peer.port}"):
            link.receive()
        assert not link.connected
        assert len(peer.requests) == 1


def test_the_next_command_after_a_loss_connects_again() -> None:
    replies_left = [None, b"+OK\r\n"]
    with server(lambda _request: replies_left.pop(0)) as peer, Connection(port=peer.port) as link:
        with pytest.raises(ConnectionLost):
            link.execute("PING")
        assert link.execute("PING") == b"OK"
        assert peer.connections == 2


@pytest.mark.parametrize("decoder", [hiredis_decoder, ReplyReader])
def test_half_a_reply_of_a_lost_link_does_not_spoil_the_next(
    decoder: Callable[[], Decoder],
) -> None:
    with server(always(b"$5\r\nhal")) as peer, Connection(port=peer.port, decoder=decoder) as link:
        link.send("PING")
        while not peer.requests:
            pass
        peer.hang_up()
        with pytest.raises(ConnectionLost):
            link.receive()
        peer.answer = always(b"+OK\r\n")
        assert link.execute("PING") == b"OK"


def test_silence_beyond_the_timeout_ends_the_link() -> None:
    with server(always(b"")) as peer, Connection(port=peer.port, timeout=0.05) as link:
        with pytest.raises(TimedOut):
            link.execute("GETJOB", "FROM", "q")
        assert not link.connected


def test_no_server_is_an_error_that_names_the_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    with pytest.raises(ConnectionLost, match=f"Could not connect to 127.0.0.1:{port}: Connection refused"):
        Connection(port=port).execute("PING")


def test_a_server_of_another_kind_is_distinguished_from_a_lost_link() -> None:
    with server(always(b"HTTP/1.1 400 Bad Request\r\n")) as peer, Connection(port=peer.port) as link:
        with pytest.raises(BadReply, match="does not answer like a Penstock node"):
            link.execute("PING")
        assert not link.connected


def test_the_password_is_shown_on_every_connection_before_anything_else() -> None:
    with server(always(b"+OK\r\n")) as peer, Connection(port=peer.port, password="secret") as link:
        link.execute("PING")
        link.close()
        link.execute("PING")
        assert peer.requests == [[b"AUTH", b"secret"], [b"PING"]] * 2


def test_a_refused_password_is_an_authentication_error_and_leaves_no_link() -> None:
    with server(always(b"-ERR invalid password\r\n")) as peer:
        link = Connection(port=peer.port, password="wrong")
        with pytest.raises(AuthenticationError, match="invalid password"):
            link.execute("PING")
        assert not link.connected


def test_a_missing_password_is_an_authentication_error() -> None:
    with (
        server(always(b"-NOAUTH Authentication required.\r\n")) as peer,
        Connection(port=peer.port) as link,
        pytest.raises(AuthenticationError),
    ):
        link.execute("QLEN", "q")


def test_alive_knows_when_the_other_end_has_hung_up() -> None:
    with server(always(b"+OK\r\n")) as peer, Connection(port=peer.port) as link:
        link.execute("PING")
        assert link.alive()
        peer.hang_up()
        while link.alive():
            pass
        assert not link.connected


def test_after_hanging_up_the_last_words_of_the_other_end_can_be_received() -> None:
    with server(always(b"")) as peer, Connection(port=peer.port, timeout=5) as link:
        peer.farewell = b"+late\r\n"
        link.send("GETJOB", "FROM", "q")
        link.hang_up()
        assert link.receive() == b"late"
        with pytest.raises(ConnectionLost):
            link.receive()


def test_to_hang_up_where_there_is_no_link_does_nothing() -> None:
    link = Connection(port=1)
    link.hang_up()
    assert not link.connected


def test_to_receive_without_a_link_is_an_error_not_a_wait() -> None:
    with pytest.raises(ConnectionLost):
        Connection(port=1).receive()


def test_a_unix_socket_works_like_a_port(tmp_path: Path) -> None:
    path = str(tmp_path / "node.sock")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    Scripted(always(b"+PONG\r\n"), listener)
    with Connection(path=path) as link:
        assert link.execute("PING") == b"PONG"
        assert link.address == path
    listener.close()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A certificate for 127.0.0.1 that vouches for itself, and its key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test node")])
    now = datetime.datetime.now(datetime.UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    folder = tmp_path_factory.mktemp("tls")
    cert_file, key_file = folder / "cert.pem", folder / "key.pem"
    cert_file.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    key_file.write_bytes(private)
    return str(cert_file), str(key_file)


def tls_server(certificate: tuple[str, str]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    return context


def test_tls_carries_commands_of_any_size(certificate: tuple[str, str]) -> None:
    body = b"x" * 300_000
    with (
        server(lambda request: b":%d\r\n" % len(request[1]), tls_server(certificate)) as peer,
        Connection(port=peer.port, tls=True, ca=certificate[0]) as link,
    ):
        assert link.pipeline([("N", body), ("N", b"")]) == [300_000, 0]
        assert link.alive()


def test_tls_can_be_read_after_hanging_up(certificate: tuple[str, str]) -> None:
    hung_up = threading.Event()

    def answer(_request: list[bytes]) -> bytes:
        hung_up.wait(10)
        return b"+late\r\n"

    with (
        server(answer, tls_server(certificate)) as peer,
        Connection(port=peer.port, tls=True, ca=certificate[0], timeout=5) as link,
    ):
        link.send("GETJOB", "FROM", "q")
        link.hang_up()
        hung_up.set()
        assert link.receive() == b"late"


def test_tls_refuses_a_server_that_nobody_vouches_for(certificate: tuple[str, str]) -> None:
    with server(always(b"+OK\r\n"), tls_server(certificate)) as peer:
        with pytest.raises(ConnectionLost, match="CERTIFICATE_VERIFY_FAILED"):
            Connection(port=peer.port, tls=True).execute("PING")
        assert peer.requests == []


def test_a_missing_certificate_file_is_named() -> None:
    with pytest.raises(CallerError, match=r"/no/such\.pem"):
        Connection(tls=True, ca="/no/such.pem")


def test_all_errors_of_the_peer_can_be_caught_as_one() -> None:
    for kind in (ConnectionLost, TimedOut, BadReply, ReplyError, AuthenticationError):
        assert issubclass(kind, PeerError)
