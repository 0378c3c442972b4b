"""Who gets in to a real node, and how: passwords, renamed commands, addresses, sockets and protected mode."""

from __future__ import annotations

import re
import socket
import stat
import subprocess
from pathlib import Path

import pytest

from penstock.errors import AuthenticationError, ReplyError
from tests.conftest import StartNode
from tests.processes import NodeProcess
from tests.raw_link import RawLink

pytestmark = pytest.mark.system

NO_AUTH = b"-NOAUTH Authentication required.\r\n"


# Passwords


def test_a_password_is_asked_for(start_node: StartNode) -> None:
    node = start_node(requirepass="secret")
    with RawLink(node) as link:
        assert link.ask("PING") == NO_AUTH
        assert link.ask("ADDJOB", "q", "body", 0) == NO_AUTH
        assert link.ask("AUTH", "wrong") == b"-ERR invalid password\r\n"
        assert link.ask("AUTH", "secret") == b"+OK\r\n"
        assert link.ask("PING") == b"+PONG\r\n"
        assert link.ask("AUTH", "wrong") == b"-ERR invalid password\r\n"
        assert link.ask("PING") == NO_AUTH


def test_a_password_is_shown_neither_to_monitors_nor_in_the_slow_log(start_node: StartNode) -> None:
    node = start_node(slowlog_log_slower_than=0)
    with RawLink(node) as monitor, RawLink(node) as link:
        assert monitor.ask("MONITOR") == b"+OK\r\n"
        assert link.ask("CONFIG", "SET", "requirepas", "SEKRET").startswith(b"-ERR")
        assert link.ask("CONFIG", "requirepass", "SEKRET").startswith(b"-ERR")
        assert link.ask("CONFIG", "SET", "RequirePass", "SEKRET") == b"+OK\r\n"
        monitor.post("AUTH", "SEKRET")
        assert link.ask("AUTH", "SEKRET") == b"+OK\r\n"
        assert link.ask("QLEN", "the-end") == b":0\r\n"
        seen = b""
        while b"the-end" not in seen:
            seen += monitor.reply()
        assert seen.count(b'"(redacted)"') == 3
        assert b"SEKRET" not in seen
    with node.connect(password="SEKRET") as client:
        slow = repr(client.execute("SLOWLOG", "GET", 100))
    assert slow.count("(redacted)") == 3
    assert "SEKRET" not in slow


def test_a_monitor_without_the_password_sees_nothing_more(start_node: StartNode) -> None:
    node = start_node(appendonly="no")
    with RawLink(node) as monitor, RawLink(node) as link:
        assert monitor.ask("MONITOR") == b"+OK\r\n"
        assert link.ask("QLEN", "seen-1") == b":0\r\n"
        assert b"seen-1" in monitor.reply()
        assert link.ask("CONFIG", "SET", "requirepass", "secret") == b"+OK\r\n"
        assert b"(redacted)" in monitor.reply()
        assert link.ask("AUTH", "secret") == b"+OK\r\n"
        assert link.ask("QLEN", "unseen-1") == b":0\r\n"
        assert monitor.ask("AUTH", "secret") == b"+OK\r\n"
        assert link.ask("QLEN", "seen-2") == b":0\r\n"
        assert b"seen-2" in monitor.reply()
        assert monitor.ask("AUTH", "wrong") == b"-ERR invalid password\r\n"
        assert link.ask("QLEN", "unseen-2") == b":0\r\n"
        assert monitor.ask("AUTH", "secret") == b"+OK\r\n"
        assert link.ask("QLEN", "seen-3") == b":0\r\n"
        assert b"seen-3" in monitor.reply()


def test_a_monitor_is_shown_the_beginning_of_a_large_request(start_node: StartNode) -> None:
    node = start_node(appendonly="no")
    with RawLink(node) as monitor, RawLink(node) as link:
        assert monitor.ask("MONITOR") == b"+OK\r\n"
        assert link.ask("QLEN", "x" * 1_000_000) == b":0\r\n"
        line = monitor.reply()
        assert len(line) < 70_000
        assert line.endswith(b'xxx... (934469 more bytes)"\r\n')
        assert link.ask("QLEN", "q") == b":0\r\n"
        assert monitor.reply().endswith(b'"QLEN" "q"\r\n')


def test_what_is_not_a_command_is_reported_before_the_password_is_asked_for(start_node: StartNode) -> None:
    node = start_node(requirepass="secret")
    with RawLink(node) as link:
        assert link.ask("FOO") == b"-ERR unknown command 'FOO'\r\n"
        assert link.ask("QLEN") == b"-ERR wrong number of arguments for 'qlen' command\r\n"
        assert link.ask("QUIT") == b"+OK\r\n"


def test_a_password_set_at_run_time_counts_for_clients_that_are_in_already(node: NodeProcess) -> None:
    with RawLink(node) as admin, RawLink(node) as other:
        assert admin.ask("AUTH", "secret") == b"-ERR Client sent AUTH, but no password is set\r\n"
        assert admin.ask("CONFIG", "SET", "requirepass", "secret") == b"+OK\r\n"
        assert other.ask("PING") == NO_AUTH
        assert admin.ask("PING") == NO_AUTH
        assert admin.ask("AUTH", "secret") == b"+OK\r\n"
        assert admin.ask("CONFIG", "SET", "requirepass", "") == b"+OK\r\n"
        assert other.ask("PING") == b"+PONG\r\n"


def test_our_client_shows_its_password(start_node: StartNode) -> None:
    node = start_node(requirepass="secret")
    with node.connect(password="secret") as connection:
        assert connection.execute("PING") == b"PONG"
    with pytest.raises(AuthenticationError):
        node.connect(password="wrong").connect()


# Renamed commands


def test_a_command_can_be_renamed_and_removed(tmp_path: Path, start_node: StartNode) -> None:
    file = tmp_path / "penstock.conf"
    file.write_text('rename-command DEBUG ""\nrename-command config hidden-config\n')
    node = start_node(include=file)
    with RawLink(node) as link:
        assert link.ask("DEBUG", "FLUSHALL") == b"-ERR unknown command 'DEBUG'\r\n"
        assert link.ask("CONFIG", "GET", "port") == b"-ERR unknown command 'CONFIG'\r\n"
        for spelling in ("hidden-config", "HIDDEN-CONFIG", "Hidden-Config"):
            assert b"%d" % node.port in link.ask(spelling, "GET", "port")
        assert link.ask("HIDDEN-CONFIG") == b"-ERR wrong number of arguments for 'config' command\r\n"


# Addresses and sockets


def test_a_node_listens_only_where_it_is_bound_to(start_node: StartNode) -> None:
    node = start_node(bind="127.0.0.2 127.0.0.3", wait=False)
    node.host = "127.0.0.3"
    node.wait_until_it_answers()
    for host, is_open in (("127.0.0.1", False), ("127.0.0.2", True), ("127.0.0.3", True)):
        with socket.socket() as link:
            assert (link.connect_ex((host, node.port)) == 0) is is_open


def test_a_unix_socket_has_the_permissions_it_was_given(tmp_path: Path, start_node: StartNode) -> None:
    path = tmp_path / "penstock.sock"
    node = start_node(unixsocket=path, unixsocketperm=700)
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    with node.connect(path=str(path)) as connection:
        assert connection.execute("PING") == b"PONG"
        assert b" flags=U" in connection.execute("CLIENT", "LIST")
    assert node.stop() == 0
    assert not path.exists()


def test_a_node_can_do_with_a_unix_socket_alone(tmp_path: Path, start_node: StartNode) -> None:
    path = tmp_path / "penstock.sock"
    node = start_node(port=0, unixsocket=path, wait=False)
    node.options = {"path": str(path)}
    node.wait_until_it_answers()
    assert node.call("PING") == b"PONG"


# Protected mode


def address_of_this_machine() -> str:
    """Return an address of this machine that isn't loopback, or skip."""
    try:
        output = subprocess.run(
            ["ip", "-4", "-o", "addr", "show", "up"], capture_output=True, text=True, check=True
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("there is no `ip` to ask for an address of this machine")
    addresses = [found for found in re.findall(r"inet ([0-9.]+)/", output) if not found.startswith("127.")]
    if not addresses:
        pytest.skip("this machine has no address but loopback")
    return addresses[0]


def first_words(host: str, port: int) -> bytes:
    """Connect, ask for nothing in particular, and return what comes."""
    with socket.create_connection((host, port), 30, source_address=(host, 0)) as link:
        link.sendall(b"PING\r\n")
        return link.recv(1000)


@pytest.fixture
def open_node(start_node: StartNode) -> tuple[NodeProcess, str]:
    """A node that can be reached from other machines, and the address."""
    host = address_of_this_machine()
    return start_node(bind=f"127.0.0.1 {host}"), host


def test_without_a_password_a_node_answers_only_its_own_machine(open_node: tuple[NodeProcess, str]) -> None:
    node, host = open_node
    assert first_words("127.0.0.1", node.port) == b"+PONG\r\n"
    refusal = first_words(host, node.port).decode()
    assert refusal.startswith("-DENIED ")
    assert "CONFIG SET requirepass" in refusal
    assert "CONFIG SET protected-mode no" in refusal


@pytest.mark.parametrize(("directive", "value"), [("protected-mode", "no"), ("requirepass", "secret")])
def test_protected_mode_ends_as_its_refusal_says(
    open_node: tuple[NodeProcess, str], directive: str, value: str
) -> None:
    node, host = open_node
    node.call("CONFIG", "SET", directive, value)
    assert first_words(host, node.port) == (NO_AUTH if directive == "requirepass" else b"+PONG\r\n")


# Directives of this kind at run time


@pytest.mark.parametrize(
    ("directive", "value", "shown"),
    [
        ("maxclients", "500", "500"),
        ("timeout", "60", "60"),
        ("client-output-buffer-limit", "normal 1mb 512kb 10", "normal 1048576 524288 10"),
        ("maxmemory", "64mb", str(64 << 20)),
        ("maxmemory-policy", "noeviction", "noeviction"),
        ("protected-mode", "no", "no"),
        ("requirepass", "", ""),
    ],
)
def test_directives_of_access_and_limits_can_be_changed(
    shared_node: NodeProcess, directive: str, value: str, shown: str
) -> None:
    (_, before) = shared_node.call("CONFIG", "GET", directive)
    try:
        assert shared_node.call("CONFIG", "SET", directive, value) == b"OK"
        assert shared_node.call("CONFIG", "GET", directive) == [directive.encode(), shown.encode()]
    finally:
        shared_node.call("CONFIG", "SET", directive, before)


@pytest.mark.parametrize("directive", ["port", "bind", "unixsocket", "tls-port", "rename-command"])
def test_what_needs_a_restart_is_refused_at_run_time(shared_node: NodeProcess, directive: str) -> None:
    with pytest.raises(ReplyError, match="Unsupported CONFIG parameter"):
        shared_node.call("CONFIG", "SET", directive, "1")


def test_maxclients_beyond_what_the_system_allows_is_refused_with_a_number(node: NodeProcess) -> None:
    with pytest.raises(ReplyError, match=r"not able to handle the specified number of clients, try with \d+"):
        node.call("CONFIG", "SET", "maxclients", 1_000_000_000)
    assert node.call("CONFIG", "GET", "maxclients")[1] == b"10000"


def test_maxclients_changed_at_run_time_counts_for_the_next_client(node: NodeProcess) -> None:
    node.call("CONFIG", "SET", "maxclients", 1)
    with RawLink(node) as refused:
        assert refused.rest() == b"-ERR max number of clients reached\r\n"
    assert node.info()["rejected_connections"] == "1"


def test_a_client_without_the_password_may_send_only_a_little(start_node: StartNode) -> None:
    node = start_node(requirepass="secret")
    with RawLink(node) as link:
        link.send(b"*2\r\n$4\r\nPING\r\n$500000000\r\n")
        text = b"-ERR Protocol error: bulk length must be at most 16384 before AUTH, got 500000000\r\n"
        assert link.rest() == text
    with RawLink(node) as link:
        assert link.ask("AUTH", "secret") == b"+OK\r\n"
        assert link.ask("ADDJOB", "q", "x" * 1_000_000, 0, "REPLICATE", 1).startswith(b"+D-")


# Others than clients


def test_a_web_page_cant_make_a_browser_run_commands(node: NodeProcess) -> None:
    node.call("ADDJOB", "q", "body", 0)
    for head in (b"POST / HTTP/1.1\r\n", b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n"):
        with RawLink(node) as link:
            link.send(head + b"Content-Length: 18\r\n\r\nDEBUG FLUSHALL\r\n")
            assert link.rest().endswith(b"-ERR this is not a web server\r\n")
    assert node.call("QLEN", "q") == 1
