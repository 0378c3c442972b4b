"""`penstock cli` as a real process against a real node: in pipes, and at a terminal."""

import fcntl
import json
import os
import pty
import re
import select
import signal
import stat
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest

from penstock.cli import main
from penstock.client import Connection

pytestmark = pytest.mark.system

SOURCE = Path(main.__file__).parents[2]
COMMAND = [sys.executable, "-m", "penstock.cli.main", "cli"]
PATIENCE_S = 20.0


class Node(Protocol):
    """What the fixture `node` gives: where a running node listens."""

    host: str
    port: int


def environment(**more: str) -> dict[str, str]:
    unwanted = ("NO_COLOR", "PENSTOCK_PASSWORD", "PYTHONUNBUFFERED")
    kept = {name: value for name, value in os.environ.items() if name not in unwanted}
    return {**kept, "PYTHONPATH": str(SOURCE), **more}


def cli(node: Node, *words: str, stdin: bytes = b"", **variables: str) -> "subprocess.CompletedProcess[bytes]":
    """Run it to its end. Whatever happens, a user never sees a traceback."""
    ended = subprocess.run(
        [*COMMAND, "-h", node.host, "-p", str(node.port), *words],
        input=stdin,
        env=environment(**variables),
        capture_output=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert b"Traceback" not in ended.stderr
    return ended


def test_in_a_pipe_replies_are_raw(node: Node) -> None:
    assert cli(node, "PING").stdout == b"PONG\n"
    seconds, microseconds, end = cli(node, "TIME").stdout.split(b"\n")
    assert seconds.isdigit()
    assert microseconds.isdigit()
    assert end == b""


def test_the_human_form_can_be_had_in_a_pipe(node: Node) -> None:
    assert cli(node, "--no-raw", "PING", "a b").stdout == b'"a b"\n'
    assert cli(node, "PING", "a b", FAKETTY="1").stdout == b'"a b"\n'


def test_texts_for_reading_are_raw_even_in_human_form(node: Node) -> None:
    assert cli(node, "--no-raw", "INFO", "server").stdout.startswith(b"# Server\r\n")
    assert b"addr=" in cli(node, "--no-raw", "CLIENT", "LIST").stdout.split(b'"')[0]


def test_json_and_csv(node: Node) -> None:
    assert json.loads(cli(node, "--json", "CONFIG", "GET", "hz").stdout) == ["hz", "10"]
    assert cli(node, "--csv", "CONFIG", "GET", "hz").stdout == b'"hz","10"\n'


def test_an_error_reply_is_printed_and_is_no_failure_unless_asked(node: Node) -> None:
    ended = cli(node, "NOPE")
    assert ended.stdout.startswith(b"ERR unknown command 'NOPE'")
    assert ended.stdout.endswith(b"\n\n")
    assert ended.returncode == 0
    assert cli(node, "-e", "NOPE").returncode == 1
    assert cli(node, "-e", "PING").returncode == 0


def test_any_bytes_go_in_and_come_out(node: Node) -> None:
    body = bytes(range(256))
    assert cli(node, "-x", "PING", stdin=body).stdout == body + b"\n"


def test_repetition(node: Node) -> None:
    assert cli(node, "-r", "3", "-i", "0.01", "PING").stdout == b"PONG\n" * 3


def test_a_script_runs_line_by_line_and_goes_on_after_a_wrong_one(node: Node) -> None:
    script = b"# a comment\nPING\n\n2 PING 'a b'\nPING \"x\nNOPE\nPING last\nquit\nPING never\n"
    ended = cli(node, stdin=script)
    lines = ended.stdout.split(b"\n")
    assert lines[:3] == [b"PONG", b"a b", b"a b"]
    assert lines[3].startswith(b"ERR unknown command 'NOPE'")
    assert lines[-2:] == [b"last", b""]
    assert b"line 5: Invalid argument(s)" in ended.stderr
    assert ended.returncode == 0
    assert cli(node, "-e", stdin=script).returncode == 1


def test_a_refused_password_is_a_warning(node: Node) -> None:
    ended = cli(node, "-a", "no password is set", "PING")
    assert ended.stderr.startswith(b"Warning: AUTH failed")
    assert ended.stdout == b"PONG\n"
    assert cli(node, "PING", PENSTOCK_PASSWORD="x").stderr.startswith(b"Warning: AUTH failed")


def test_a_job_goes_through(node: Node) -> None:
    job_id = cli(node, "ADDJOB", "cli-q", "caf\u00e9", "0").stdout.decode().strip()
    assert re.fullmatch(r"D-\S{38}", job_id)
    assert json.loads(cli(node, "--json", "GETJOB", "NOHANG", "FROM", "cli-q").stdout) == [
        ["cli-q", job_id, "caf\u00e9"]
    ]
    assert cli(node, "--no-raw", "ACKJOB", job_id).stdout == b"(integer) 1\n"


def test_pipe_sends_everything_and_ends_by_itself(node: Node) -> None:
    request = b"*2\r\n$4\r\nPING\r\n$1000\r\n%s\r\n" % (b"x" * 1000)
    started = time.monotonic()
    ended = cli(node, "--pipe", stdin=request * 20_000 + b"PING")
    assert ended.stdout.endswith(b"Last reply received from server.\nerrors: 0, replies: 20001\n")
    assert ended.returncode == 0
    assert time.monotonic() - started < PATIENCE_S


def test_pipe_counts_errors_and_fails(node: Node) -> None:
    ended = cli(node, "--pipe", stdin=b"PING\r\nNOPE\r\nPING\r\n")
    assert ended.stdout.endswith(b"errors: 1, replies: 3\n")
    assert b"unknown command 'NOPE'" in ended.stderr
    assert ended.returncode == 1


def test_pipe_gives_up_on_a_request_that_is_cut_off(node: Node) -> None:
    ended = cli(node, "--pipe", "--pipe-timeout", "1", stdin=b"*2\r\n$4\r\nPING\r\n$1000\r\nabc")
    assert b"No replies for 1 seconds" in ended.stderr
    assert ended.returncode == 1


def test_pipe_says_when_the_node_hangs_up(node: Node) -> None:
    ended = cli(node, "--pipe", stdin=b"*1\r\n!\r\n")
    assert b"Lost the connection" in ended.stderr
    assert ended.returncode == 1


def test_latency_and_statistics_end_after_the_given_number(node: Node) -> None:
    assert re.fullmatch(
        rb"min: [\d.]+, max: [\d.]+, avg: [\d.]+ ms \(3 samples\)\n", cli(node, "--latency", "-r", "3").stdout
    )
    history = cli(node, "--latency-history", "-i", "0.05", "-r", "2").stdout
    assert history.count(b"seconds range\n") == 2
    heading, first, second, end = cli(node, "--stat", "-i", "0.01", "-r", "2").stdout.split(b"\n")
    assert heading.split() == b"jobs queues mem clients blocked requests connections".split()
    assert (len(first.split()), len(second.split())) == (7, 8)
    assert end == b""


def test_a_reader_that_has_had_enough_ends_it_quietly(node: Node) -> None:
    words = [*COMMAND, "-h", node.host, "-p", str(node.port), "-r", "-1", "PING"]
    with subprocess.Popen(words, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"PONG\n"
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(PATIENCE_S) == 1


def test_monitor_streams_until_it_is_interrupted(node: Node) -> None:
    words = [*COMMAND, "-h", node.host, "-p", str(node.port), "MONITOR"]
    with subprocess.Popen(words, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"OK\n"
        cli(node, "PING", "watched")
        line = process.stdout.readline()
        while b"watched" not in line:
            line = process.stdout.readline()
        assert re.search(rb'\d+\.\d+ \[.*\] "PING" "watched"\n', line)
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 0


# Makes the terminal the process's own, so that Ctrl-C reaches it as it would a user's.
LAUNCH = """
import os, sys
os.setsid()
terminal = os.open(sys.argv[1], os.O_RDWR)
for number in range(3):
    os.dup2(terminal, number)
os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
"""
ESCAPES = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]|\r")


class Terminal:
    """A user at a terminal with `penstock cli`."""

    def __init__(self, home: Path, *words: str, **variables: str) -> None:
        # Our hold on the far end keeps what a process wrote readable after it has ended.
        self.master, self._far = pty.openpty()
        fcntl.ioctl(self._far, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 150, 0, 0))
        self.raw = b""
        self.process = subprocess.Popen(
            [sys.executable, "-c", LAUNCH, os.ttyname(self._far), *COMMAND[1:], *words],
            # Nobody here answers prompt_toolkit's question where the cursor is.
            env=environment(HOME=str(home), TERM="xterm", PROMPT_TOOLKIT_NO_CPR="1", **variables),
        )
        self._seen = 0

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def expect(self, text: str) -> None:
        """Wait until the text appears, after what was expected before."""
        deadline = time.monotonic() + PATIENCE_S
        while (at := self.shown().find(text.encode(), self._seen)) < 0:
            if select.select([self.master], [], [], 0.1)[0]:
                self.raw += os.read(self.master, 65536)
            elif self.process.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"{text!r} does not come after {self.shown()[self._seen :].decode()!r}")
        self._seen = at + len(text)

    def shown(self) -> bytes:
        return ESCAPES.sub(b"", self.raw)

    def end(self) -> int:
        code = self.process.wait(PATIENCE_S)
        os.close(self.master)
        os.close(self._far)
        return code


@pytest.fixture
def terminal(node: Node, tmp_path: Path) -> Iterator[Terminal]:
    user = Terminal(tmp_path, "-h", node.host, "-p", str(node.port))
    user.expect(f"{node.host}:{node.port}>")
    yield user
    if user.process.poll() is None:
        user.process.kill()
        user.end()


def test_the_prompt_runs_commands_until_quit(terminal: Terminal, node: Node) -> None:
    prompt = f"{node.host}:{node.port}>"
    terminal.type("PING\r")
    terminal.expect("\nPONG\n")
    terminal.expect(prompt)
    terminal.type("2 PING 'a b'\r")
    terminal.expect('\n"a b"\n"a b"\n')
    terminal.expect(prompt)
    terminal.type('PING "x\r')
    terminal.expect("Invalid argument(s)")
    terminal.expect(prompt)
    terminal.type("quit\r")
    assert terminal.end() == 0


def test_ctrl_d_leaves(terminal: Terminal) -> None:
    terminal.type("\x04")
    assert terminal.end() == 0


def test_ctrl_c_gives_up_the_line_and_nothing_else(terminal: Terminal) -> None:
    terminal.type("nothing")  # no command, so that no hint is drawn between its letters
    terminal.expect("nothing")
    terminal.type("\x03")
    terminal.expect(">")
    terminal.type("PING yes\r")
    terminal.expect('\n"yes"\n')


def test_help_completion_and_hints_at_the_prompt(terminal: Terminal) -> None:
    terminal.type("help qpeek\r")
    terminal.expect("QPEEK queue count")
    terminal.expect(">")
    terminal.type("QPE\t")
    terminal.expect("queue count")  # the hint for what was completed


def test_errors_are_red_on_a_terminal(terminal: Terminal) -> None:
    terminal.type("NOPE\r")
    terminal.expect("(error) ERR unknown command")
    assert b"\x1b[31m(error)" in terminal.raw


def test_no_color_is_respected(node: Node, tmp_path: Path) -> None:
    user = Terminal(tmp_path, "-h", node.host, "-p", str(node.port), "NOPE", NO_COLOR="1")
    user.expect("(error) ERR unknown command")
    assert b"\x1b" not in user.raw
    assert user.end() == 0


def test_a_link_that_broke_while_idle_is_opened_again(terminal: Terminal, node: Node) -> None:
    with Connection(node.host, node.port) as other:
        assert other.execute("CLIENT", "KILL", "TYPE", "normal") >= 1
    terminal.type("PING\r")
    terminal.expect("\nPONG\n")


def test_connect_goes_to_another_node_or_nowhere(terminal: Terminal, node: Node) -> None:
    terminal.type("connect 127.0.0.1 1\r")
    terminal.expect("Could not connect to 127.0.0.1:1")
    terminal.expect("not connected>")
    terminal.type(f"connect {node.host} {node.port}\r")
    terminal.expect(f"{node.host}:{node.port}>")
    terminal.type("connect nowhere\r")
    terminal.expect("Use: connect host port")


def test_ctrl_c_ends_monitor_and_brings_the_prompt_back(terminal: Terminal, node: Node) -> None:
    terminal.type("MONITOR\r")
    terminal.expect("\nOK\n")
    cli(node, "PING", "watched")
    terminal.expect('"PING" "watched"')
    terminal.type("\x03")
    terminal.expect(">")
    terminal.type("PING\r")
    terminal.expect("\nPONG\n")


def test_ctrl_c_gives_up_a_command_that_waits(terminal: Terminal, node: Node) -> None:
    terminal.type("GETJOB FROM cli-nothing\r")
    with Connection(node.host, node.port) as other:
        deadline = time.monotonic() + PATIENCE_S
        while b"blocked_clients:1" not in other.execute("INFO", "clients"):
            assert time.monotonic() < deadline
    terminal.type("\x03")
    terminal.expect(">")
    terminal.type("PING\r")
    terminal.expect("\nPONG\n")


def test_a_slow_command_says_how_long_it_took(terminal: Terminal) -> None:
    terminal.type("GETJOB TIMEOUT 600 FROM cli-nothing\r")
    terminal.expect("(nil)\n(0.")
    terminal.expect("s)\n")


def test_history_is_kept_private_and_without_passwords(terminal: Terminal, tmp_path: Path) -> None:
    terminal.type("PING remembered\r")
    terminal.expect('\n"remembered"\n')
    terminal.type("AUTH secret\r")
    terminal.expect("(error)")
    terminal.type("exit\r")
    assert terminal.end() == 0
    history = tmp_path / ".penstock_history"
    assert "PING remembered" in history.read_text()
    assert "secret" not in history.read_text()
    assert stat.S_IMODE(history.stat().st_mode) == 0o600
