"""TLS for clients of a real node: its certificate, theirs, and what happens to those who don't speak it."""

from __future__ import annotations

import socket
import ssl
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from penstock.client import Connection
from penstock.errors import ConnectionLost
from tests.certificates import Authority, Pair
from tests.conftest import StartNode
from tests.processes import NodeProcess, free_port
from tests.raw_link import RawLink

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"), "authority")


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """An authority that the node has not heard of."""
    return Authority(tmp_path_factory.mktemp("certificates"), "stranger")


def start_tls(start_node: StartNode, authority: Authority, **directives: object) -> NodeProcess:
    pair = authority.sign("node")
    node = start_node(tls_port=free_port(), tls_cert_file=pair.cert, tls_key_file=pair.key, **directives)
    node.tls_port = int(str(node.directives["tls_port"]))
    return node


def tls_link(node: NodeProcess, ca: Authority, pair: Pair | None = None) -> Connection:
    options = {} if pair is None else {"cert": str(pair.cert), "key": str(pair.key)}
    return Connection(node.host, node.tls_port, tls=True, ca=str(ca.cert), timeout=30, **options)


def test_a_client_talks_over_tls(start_node: StartNode, authority: Authority) -> None:
    node = start_tls(start_node, authority)
    body = bytes(range(256)) * 20_000
    with tls_link(node, authority) as connection:
        connection.execute("ADDJOB", "q", body, 0)
        assert [connection.execute("GETJOB", "FROM", "q")[0][2]] == [body]
        assert connection.pipeline([("PING", str(number)) for number in range(5000)])[-1] == b"4999"
    assert node.call("PING") == b"PONG"  # the plain port is there, too


def test_a_client_that_says_it_sends_no_more_gets_its_reply_and_no_alarm(
    start_node: StartNode, authority: Authority
) -> None:
    node = start_tls(start_node, authority)
    trust = ssl.create_default_context(cafile=str(authority.cert))
    plain = socket.create_connection((node.host, node.tls_port), 30)
    with trust.wrap_socket(plain, server_hostname=node.host) as link:
        link.sendall(b"PING\r\n")
        socket.socket.shutdown(link, socket.SHUT_WR)  # TLS itself has no words for it that leave the other half open
        assert link.recv(100) == b"+PONG\r\n"
        assert link.recv(100) == b""


def test_tls_can_be_the_only_way_in(start_node: StartNode, authority: Authority) -> None:
    pair = authority.sign("node")
    port = free_port()
    node = start_node(port=0, tls_port=port, tls_cert_file=pair.cert, tls_key_file=pair.key, wait=False)
    node.port = node.tls_port = port
    node.options = {"tls": True, "ca": str(authority.cert)}
    node.wait_until_it_answers()
    assert node.call("PING") == b"PONG"


def test_a_client_refuses_a_node_of_another_authority(
    start_node: StartNode, authority: Authority, stranger: Authority
) -> None:
    node = start_tls(start_node, authority)
    with pytest.raises(ConnectionLost, match="certificate verify failed"):
        tls_link(node, stranger).connect()
    with tls_link(node, authority) as connection:
        assert connection.execute("PING") == b"PONG"


def is_let_in(node: NodeProcess, ca: Authority, pair: Pair | None) -> bool:
    """Whether a client gets an answer. With TLS 1.3 a refusal comes only after its side of the handshake."""
    try:
        with tls_link(node, ca, pair) as connection:
            return connection.execute("PING") == b"PONG"
    except ConnectionLost:
        return False


@pytest.mark.parametrize(
    ("policy", "without", "known", "unknown"),
    [("yes", False, True, False), ("optional", True, True, False), ("no", True, True, True)],
)
def test_client_certificates_are_asked_for_as_configured(
    start_node: StartNode,
    authority: Authority,
    stranger: Authority,
    policy: str,
    without: bool,
    known: bool,
    unknown: bool,
) -> None:
    node = start_tls(start_node, authority, tls_ca_cert_file=authority.cert, tls_auth_clients=policy)
    assert is_let_in(node, authority, None) is without
    assert is_let_in(node, authority, authority.sign("client")) is known
    assert is_let_in(node, authority, stranger.sign("client")) is unknown
    assert "Traceback" not in node.log.read_text()


def test_those_who_speak_no_tls_harm_nobody(start_node: StartNode, authority: Authority) -> None:
    node = start_tls(start_node, authority)
    plain = NodeProcess(node.directory, port=node.tls_port)
    for data in (
        b"PING\r\n",
        b"",
        b"\x16\x03\x01\x02\x00\x01",
        b"\x16\x03\x01\xff\xff" + b"\0" * 70_000,
        b"*1\r\n$4\r\n",
    ):
        with RawLink(plain) as link:
            link.send(data)
            if data.startswith(b"PING"):
                with suppress(ConnectionError):  # it may hang up without having read all
                    assert b"PONG" not in link.rest()
    with RawLink(node) as link, RawLink(node) as other:
        # And the other way round: a TLS handshake on the plain port isn't a request.
        link.send(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n")
        assert link.reply().startswith(b"-ERR")
        assert other.ask("PING") == b"+PONG\r\n"
    with tls_link(node, authority) as connection:
        assert connection.execute("PING") == b"PONG"
    assert "Traceback" not in node.log.read_text()


def test_old_versions_of_tls_are_refused(start_node: StartNode, authority: Authority) -> None:
    node = start_tls(start_node, authority)
    context = ssl.create_default_context(cafile=str(authority.cert))
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        context.minimum_version = ssl.TLSVersion.TLSv1_1
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    context.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.raises(ConnectionLost):
        Connection(node.host, node.tls_port, tls=context, timeout=30).connect()


@pytest.mark.parametrize("broken", ["cert", "key", "ca"])
def test_files_that_are_not_certificates_are_reported_in_a_sentence(
    tmp_path: Path, authority: Authority, broken: str
) -> None:
    pair = authority.sign("node")
    files = {"cert": pair.cert, "key": pair.key, "ca": authority.cert, broken: tmp_path / "missing.pem"}
    argv = [sys.executable, "-m", "penstock", "server", "--port", "0", "--tls-port", str(free_port())]
    argv += ["--tls-cert-file", str(files["cert"]), "--tls-key-file", str(files["key"])]
    argv += ["--tls-ca-cert-file", str(files["ca"]), "--dir", str(tmp_path)]
    for content in (None, "this isn't a certificate"):
        if content is not None:
            files[broken].write_text(content)
        done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)
        output = done.stdout + done.stderr
        assert done.returncode == 1
        assert f"tls-{'ca-cert' if broken == 'ca' else broken}-file {files[broken]}" in output
        assert "Traceback" not in output
