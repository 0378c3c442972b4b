"""How a node starts, and what it says if it can't: configuration files, ports and directories."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from penstock.errors import ReplyError
from tests.certificates import Authority
from tests.conftest import StartNode
from tests.processes import NodeProcess, free_port, wait_until

pytestmark = pytest.mark.system

# As the original ships it, cut to the lines in force, with its comments' style.
ORIGINAL_FILE = """\
# Disque configuration file example
daemonize no
pidfile {directory}/disque.pid
port {port}
tcp-backlog 511
bind 127.0.0.1
timeout 0
tcp-keepalive 0
loglevel notice
logfile ""
# syslog-enabled no
maxclients 1000
maxmemory 100mb
maxmemory-policy acks
appendonly yes
appendfilename "disque.aof"
appendfsync everysec
no-appendfsync-on-rewrite no
auto-aof-rewrite-percentage 100
auto-aof-rewrite-min-size 64mb
aof-load-truncated yes
aof-enqueue-jobs-once no
cluster-config-file nodes.conf
cluster-node-timeout 5000
slowlog-log-slower-than 10000
slowlog-max-len 128
latency-monitor-threshold 0
activerehashing yes
client-output-buffer-limit normal 0 0 0
hz 10
aof-rewrite-incremental-fsync yes
dir {directory}
"""


class FileNode(NodeProcess):
    """A node that is told everything by a file."""

    def __init__(self, directory: Path, file: Path, port: int) -> None:
        super().__init__(directory, port)
        self.file = file

    @property
    def argv(self) -> list[str]:
        return [sys.executable, "-m", "penstock", "server", str(self.file)]


def failed_start(*words: object, cwd: Path) -> str:
    """Start a node that can't, and return what it says."""
    argv = [sys.executable, "-m", "penstock", "server", *map(str, words)]
    done = subprocess.run(argv, cwd=cwd, capture_output=True, text=True, timeout=30, check=False)
    output = done.stdout + done.stderr
    assert done.returncode == 1, output
    assert "Traceback" not in output
    return output


def start_from(file: Path, directory: Path, port: int) -> None:
    """Start a node from a file, use it, and stop it."""
    node = FileNode(directory, file, port)
    try:
        node.start()
        assert node.call("ADDJOB", "q", "body", 0)
        assert node.call("CONFIG", "REWRITE") == b"OK"
        assert node.stop() == 0
    finally:
        node.kill()


def test_the_printed_configuration_starts_a_node(tmp_path: Path) -> None:
    printed = subprocess.run(
        [sys.executable, "-m", "penstock", "server", "--print-config"], capture_output=True, text=True, check=True
    ).stdout
    port = free_port()
    file = tmp_path / "penstock.conf"
    file.write_text(printed + f"\nport {port}\nbind 127.0.0.1\ndir {tmp_path}\n")
    start_from(file, tmp_path, port)


def test_a_file_of_the_original_starts_a_node(tmp_path: Path) -> None:
    port = free_port()
    file = tmp_path / "disque.conf"
    file.write_text(ORIGINAL_FILE.format(directory=tmp_path, port=port))
    start_from(file, tmp_path, port)
    assert "# Disque configuration file example" in file.read_text()
    start_from(file, tmp_path, port)  # what CONFIG REWRITE wrote is as good


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--maxmemry", "1gb"], "did you mean maxmemory?"),
        (["--maxmemory", "lots"], "maxmemory"),
        (["--port", "70000"], "port"),
        (["--port", "60000"], "give a number from 0 to 55535"),
        (["--port", "0"], "nothing to listen on"),
        (["--maxmemory", "0"], "maxmemory"),
        (["no-such-file.conf"], "can't read the config file"),
        (["--tls-port", "7777"], "tls-port needs tls-cert-file and tls-key-file"),
        (["--dir", "no-such-directory"], "is not a directory: create it, or name another"),
        (["--bind", "192.0.2.77"], "Cannot assign requested address. Give bind addresses of this machine."),
        (["--bind", "no-such-host.invalid"], ". Give bind addresses of this machine."),
        (["--cluster-config-file", "/no-such-directory/nodes"], "See dir and cluster-config-file"),
        pytest.param(
            ["--dir", "/proc"],
            "can't write /proc/disque.aof.lock",
            marks=pytest.mark.skipif(not Path("/proc").exists(), reason="no directory that root can't write to"),
        ),
        (["--logfile", "/no-such-directory/log"], "can't open logfile /no-such-directory/log: No such file"),
        (["--unixsocket", "no-such-directory/socket"], "can't listen"),
        (["--appendfilename", "a/b"], "appendfilename"),
    ],
)
def test_a_mistake_is_reported_in_a_sentence(tmp_path: Path, words: list[str], told: str) -> None:
    rest = ["--port", free_port()] if "--port" not in words else []
    output = failed_start(*words, *rest, cwd=tmp_path)
    assert told in output


def test_a_port_in_use_is_named(node: NodeProcess, tmp_path: Path) -> None:
    output = failed_start("--port", node.port, "--bind", "127.0.0.1", cwd=tmp_path)
    assert "can't listen" in output
    assert f"port {node.port}" in output
    assert "Is another node running there?" in output


@pytest.mark.parametrize("directive", ["--tls-port", "--unixsocket"])
def test_what_can_not_be_listened_on_is_named(node: NodeProcess, tmp_path: Path, directive: str) -> None:
    pair = Authority(tmp_path, "authority").sign("node")
    tls = ["--tls-cert-file", pair.cert, "--tls-key-file", pair.key]
    place = {"--tls-port": str(node.port), "--unixsocket": str(tmp_path / "missing" / "socket")}[directive]
    output = failed_start("--port", free_port(), "--bind", "127.0.0.1", directive, place, *tls, cwd=tmp_path)
    assert place in output


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no file that is always full")
def test_a_node_goes_on_without_a_log_that_can_not_be_written(start_node: StartNode) -> None:
    node = start_node(logfile="/dev/full")
    assert node.call("PING") == b"PONG"
    assert node.stop() == 0
    assert node.log.read_text() == "penstock server: can't write the log: [Errno 28] No space left on device\n"


@pytest.mark.skipif(Path("/dev/log").exists(), reason="there is a syslog here")
def test_a_node_without_the_syslog_that_it_shall_use_does_not_start(tmp_path: Path) -> None:
    output = failed_start("--port", free_port(), "--syslog-enabled", "yes", cwd=tmp_path)
    assert "syslog-enabled is yes, but /dev/log can't be used" in output
    assert "Logging error" not in output


def test_two_nodes_in_one_directory_are_refused(node: NodeProcess) -> None:
    output = failed_start("--port", free_port(), "--dir", node.directory, cwd=node.directory)
    assert "is locked by another node" in output
    assert "give this one its own --dir" in output
    assert node.call("PING") == b"PONG"


def test_a_directory_is_free_again_after_a_crash(start_node: StartNode) -> None:
    node = start_node()
    node.kill()
    node.start()
    assert node.call("PING") == b"PONG"


@pytest.mark.parametrize("content", ["nonsense\n", "x" * 5000, "\0\0\0\0"])
def test_a_damaged_file_of_the_cluster_is_reported_in_a_sentence(tmp_path: Path, content: str) -> None:
    (tmp_path / "nodes.conf").write_text(content)
    assert "nodes.conf" in failed_start("--port", free_port(), "--dir", tmp_path, cwd=tmp_path)


def test_a_line_about_another_node_that_can_not_be_read_is_named_and_left_out(start_node: StartNode) -> None:
    node = start_node()
    mine = node.call("CLUSTER", "MYID")
    node.kill()
    conf = node.directory / "nodes.conf"
    lines = [
        conf.read_text(),
        f"{'5' * 40} 127.0.0.1:60000 noflags 0 0 connected\n",
        f"{'6' * 40} nowhere:7711 noflags 0 0 connected\n",
        "nonsense\n",
        f"{'7' * 40} 127.0.0.1:\xb2\xb2\xb2 noflags 0 0 connected\n",  # digits to str.isdigit
        f"{'8' * 40} 127.0.0.1:{'7' * 5000} noflags 0 0 connected\n",
        f"{mine.decode()} 127.0.0.1:7711 noflags 0 0 connected\n",
        f"{'9' * 39}\x01 127.0.0.1:7711 noflags 0 0 connected\n",
    ]
    conf.write_text("".join(lines), "latin-1")
    node.start()
    assert node.call("CLUSTER", "MYID") == mine
    (line,) = node.call("CLUSTER", "NODES").splitlines()
    assert b" myself " in line
    log = node.log.read_text()
    assert all(f"nodes.conf line {number} is left out" in log for number in range(2, 9))


def test_certificates_that_must_be_shown_need_an_authority(tmp_path: Path) -> None:
    output = failed_start("--port", free_port(), "--tls-auth-clients", "yes", cwd=tmp_path)
    assert "tls-auth-clients yes needs tls-ca-cert-file" in output


def test_the_files_of_a_node_are_for_its_user_alone(start_node: StartNode, tmp_path: Path) -> None:
    node = start_node(logfile=str(tmp_path / "node.log"))
    node.call("ADDJOB", "q", "body", 0)
    node.call("BGREWRITEAOF")
    wait_until(lambda: b"aof_rewrite_in_progress:0" in node.call("INFO", "persistence"))
    made = [*node.directory.glob("disque.aof*"), *node.directory.glob("nodes.conf*"), tmp_path / "node.log"]
    assert len(made) >= 4
    assert {path.name: oct(path.stat().st_mode & 0o777) for path in made} == {path.name: "0o600" for path in made}


def test_the_group_may_read_where_the_operator_says_so(start_node: StartNode) -> None:
    node = start_node(umask="027")
    node.call("ADDJOB", "q", "body", 0)
    assert (node.directory / "disque.aof").stat().st_mode & 0o777 == 0o640


def test_the_directory_doesnt_change_while_the_journal_is_in_it(start_node: StartNode, tmp_path: Path) -> None:
    node = start_node()
    with pytest.raises(ReplyError, match=r"The journal is on, and in .*appendonly no"):
        node.call("CONFIG", "SET", "dir", str(tmp_path))
    assert node.call("CONFIG", "SET", "dir", str(node.directory)) == b"OK"
    assert node.call("CONFIG", "SET", "dir", ".") == b"OK"
    assert node.call("CONFIG", "GET", "dir")[1].decode() == str(node.directory)
    node.call("ADDJOB", "q", "body", 0)
    node.kill()
    assert node.start().call("QLEN", "q") == 1


def test_a_directory_that_a_node_moved_to_is_its_own(start_node: StartNode, tmp_path: Path) -> None:
    node, other = start_node(appendonly="no"), start_node(appendonly="no")
    place = tmp_path / "place"
    place.mkdir()
    assert node.call("CONFIG", "SET", "dir", str(place)) == b"OK"
    assert node.call("CLUSTER", "MYID").decode() in (place / "nodes.conf").read_text()
    assert node.call("CONFIG", "SET", "dir", str(place)) == b"OK"
    with pytest.raises(ReplyError, match="is locked by another node"):
        other.call("CONFIG", "SET", "dir", str(place))
    assert other.call("CONFIG", "GET", "dir")[1].decode() == str(other.directory)
    assert "is locked by another node" in failed_start("--port", free_port(), "--dir", place, cwd=tmp_path)
