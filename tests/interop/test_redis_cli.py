"""redis-cli, as Debian ships it: one command, a script, MONITOR, and RESP3."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable

import pytest

from tests.processes import NodeProcess, need_program, wait_until

pytestmark = pytest.mark.interop

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def cli(shared_node: NodeProcess) -> Run:
    """Runs redis-cli with these words and this standard input."""
    program = need_program("redis-cli")

    def run(*words: str, text: str = "") -> subprocess.CompletedProcess[str]:
        argv = [program, "-p", str(shared_node.port), *words]
        return subprocess.run(argv, input=text, capture_output=True, text=True, timeout=30, check=False)

    return run


def lines(done: subprocess.CompletedProcess[str]) -> list[str]:
    return done.stdout.splitlines()


def test_one_command_adds_and_another_gets(cli: Run) -> None:
    (job_id,) = lines(cli("ADDJOB", "one", "hello world", "0"))
    assert lines(cli("GETJOB", "FROM", "one")) == ["one", job_id, "hello world"]


def test_a_job_is_nacked_shown_and_acked(cli: Run) -> None:
    (job_id,) = lines(cli("ADDJOB", "life", "x", "0", "RETRY", "77"))
    cli("GETJOB", "FROM", "life")
    assert lines(cli("WORKING", job_id)) == ["77"]
    assert lines(cli("NACK", job_id)) == ["1"]
    shown = lines(cli("SHOW", job_id))
    assert shown[shown.index("state") + 1] == "queued"
    assert shown[shown.index("nacks") + 1] == "1"
    assert lines(cli("ACKJOB", job_id)) == ["1"]


def test_a_script_runs_line_by_line(cli: Run) -> None:
    done = cli(text='ADDJOB piped "a b" 0\nQLEN piped\nQPEEK piped 1\n')
    job_id, length, name, peeked_id, body = lines(done)
    assert (length, name, peeked_id, body) == ("1", "piped", job_id, "a b")


def test_an_error_is_printed_and_with_e_is_the_exit_code(cli: Run) -> None:
    assert "unknown command 'BOGUS'" in cli("BOGUS").stdout
    assert cli("-e", "BOGUS").returncode == 1


def test_no_job_is_nil(cli: Run) -> None:
    assert cli("--no-raw", "GETJOB", "NOHANG", "FROM", "nothing").stdout == "(nil)\n"


@pytest.mark.parametrize("nothing", [("GETJOB", "NOHANG", "FROM", "nothing"), ("QSTAT", "unknown")])
def test_no_job_is_nil_in_resp3(cli: Run, nothing: tuple[str, ...]) -> None:
    assert cli("-3", "--no-raw", *nothing).stdout == "(nil)\n"


def test_resp3_has_maps(cli: Run) -> None:
    assert cli("-3", "--no-raw", "CONFIG", "GET", "maxmemory-policy").stdout == ('1# "maxmemory-policy" => "acks"\n')


def test_jobs_are_the_same_in_resp3(cli: Run) -> None:
    (job_id,) = lines(cli("-3", "ADDJOB", "three", "x", "0"))
    assert json.loads(cli("-3", "--json", "GETJOB", "WITHCOUNTERS", "FROM", "three").stdout) == [
        ["three", job_id, "x", "nacks", 0, "additional-deliveries", 0]
    ]


def test_a_blocked_cli_gets_what_another_client_adds(cli: Run, shared_node: NodeProcess) -> None:
    program = need_program("redis-cli")
    argv = [program, "-p", str(shared_node.port), "GETJOB", "TIMEOUT", "20000", "FROM", "awaited"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as waiting:
        wait_until(lambda: shared_node.info()["blocked_clients"] == "1")
        (job_id,) = lines(cli("ADDJOB", "awaited", "late", "0"))
        output, _ = waiting.communicate(timeout=20)
    assert output.splitlines() == ["awaited", job_id, "late"]


def test_monitor_shows_what_others_run(cli: Run, shared_node: NodeProcess) -> None:
    argv = [need_program("redis-cli"), "-p", str(shared_node.port), "MONITOR"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        assert watching.stdout.readline() == "OK\n"
        cli("ADDJOB", 'watch"ed', "x", "0")
        line = watching.stdout.readline()
        watching.terminate()
    assert line.endswith(r'"ADDJOB" "watch\"ed" "x" "0"' + "\n")
    assert "[127.0.0.1:" in line


def test_a_repeated_command_runs_that_often(cli: Run) -> None:
    assert len(set(lines(cli("-r", "3", "ADDJOB", "repeated", "x", "0")))) == 3
    assert lines(cli("QLEN", "repeated")) == ["3"]
