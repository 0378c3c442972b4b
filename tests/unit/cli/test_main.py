"""The `penstock` command: help, exit codes, messages in place of tracebacks, and what is not loaded."""

import importlib
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import IO

import pytest

from penstock import errors
from penstock.cli import check_aof, main, shell
from penstock.cli.main import GROUPS
from penstock.cli.shell.options import parse

SOURCE = Path(main.__file__).parents[2]


def penstock(*words: str, stdout: IO[bytes] | int = subprocess.PIPE) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "penstock.cli.main", *words],
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        stdin=subprocess.DEVNULL,
        check=False,
    )


def exit_code(*words: str) -> int | str | None:
    with pytest.raises(SystemExit) as end:
        main.main(list(words))
    return end.value.code


@pytest.mark.parametrize("words", [["--help"], ["-h"], []])
def test_help_lists_every_group(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(*words) == 0
    text = capsys.readouterr().out
    for name, group in GROUPS.items():
        assert name in text
        assert group.summary in text


@pytest.mark.parametrize("name", GROUPS)
def test_every_group_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(name, "--help") == 0
    assert capsys.readouterr().out.lower().startswith(f"usage: penstock {name}")


@pytest.mark.parametrize("words", [["version"], ["--version"], ["-v"], ["cli", "--version"], ["cli", "-v"]])
def test_version(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(*words) == 0
    assert capsys.readouterr().out.startswith("penstock ")


def test_help_mentions_the_version_and_completion(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("--help") == 0
    text = capsys.readouterr().out
    assert "--version" in text
    assert "--install-completion" in text
    assert "--show-completion" in text


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("penstock pu", {"push", "purge"}),
        ("penstock push --uni", {"--unique", "--unique-for"}),
        ("penstock cluster st", {"start", "stop", "status"}),
        ("penstock cluster create --r", {"--replace"}),
        ("penstock worker --ma", {"--max-tries"}),
        ("penstock spark d", {"drain", "doctor"}),
        ("penstock server --por", set()),
    ],
)
def test_the_next_word_is_completed(typed: str, offered: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMP_WORDS", typed)
    monkeypatch.setenv("COMP_CWORD", str(len(typed.split()) - 1))
    monkeypatch.setenv("_PENSTOCK_COMPLETE", "complete_bash")
    done = penstock()
    assert set(done.stdout.split()) <= offered, done.stderr
    assert offered - {"doctor"} <= set(done.stdout.split())


def test_a_shell_completes_with_the_script_that_is_shown(tmp_path: Path) -> None:
    command = tmp_path / "penstock"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m penstock.cli.main "$@"\n')
    command.chmod(0o755)
    script = (
        'eval "$(penstock --show-completion)"; COMP_WORDS=(penstock pu); COMP_CWORD=1; '
        "_penstock_completion penstock; echo ${COMPREPLY[@]}"
    )
    done = subprocess.run(
        ["bash", "-c", script],
        env={**os.environ, "PYTHONPATH": str(SOURCE), "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert done.stdout == "push purge\n", done.stderr


def test_a_command_that_was_renamed_names_the_new_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("copy", "memory:", "q", "memory:", "r") == 2
    assert capsys.readouterr().err == "penstock: `penstock copy` is now `penstock move`\n"


def test_an_unknown_command_is_answered_with_the_nearest_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("serve") == 2
    told = capsys.readouterr().err
    assert "Did you mean" in told
    assert "'server'" in told


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["--nope"], "--nope"),
        (["version", "x"], "takes no arguments"),
        (["cli", "--nope", "PING"], "penstock cli --help"),
        (["cli", "-n", "1"], "Unrecognized option: -n"),
        (["cli", "-p"], "-p needs a value"),
        (["cli", "-p", "0"], "from 1 to 65535"),
        (["cli", "-p", "seven"], "'seven'"),
        (["cli", "-r", "-2", "PING"], "-r must be a whole number"),
        (["cli", "-i", "soon", "PING"], "-i must be a number of seconds"),
        (["cli", "-x"], "-x needs a command"),
        (["cli", "--stat", "PING"], "--stat takes no command"),
        (["cli", "--key", "k.pem", "PING"], "--key needs --cert"),
        (["cli", "--cacert", "/no/such.pem", "PING"], "/no/such.pem"),
        (["check-aof"], "needs one journal file, got 0"),
        (["check-aof", "--repair", "x"], "--repair"),
        (["check-aof", "/no/such.aof"], "/no/such.aof must be a file that exists"),
    ],
)
def test_a_users_mistake_is_exit_code_2_and_says_what_to_do(
    words: list[str], hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(*words) == 2
    output = capsys.readouterr()
    assert hint in output.err
    assert output.out == ""


def test_no_node_is_exit_code_1_and_says_how_to_start_one(unused_port: int) -> None:
    ended = penstock("cli", "-p", str(unused_port), "PING")
    assert (ended.returncode, ended.stdout) == (1, "")
    assert f"Could not connect to 127.0.0.1:{unused_port}" in ended.stderr
    assert "penstock server" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no file that is always full")
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("words", [["version"], ["--help"], ["push", "memory:", "q", "body"]])
def test_output_that_can_not_be_written_is_exit_code_1_and_reported(
    words: list[str], unbuffered: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    with Path("/dev/full").open("wb") as full:
        ended = penstock(*words, stdout=full)
    assert (ended.returncode, ended.stderr) == (1, "penstock: can't write the output: No space left on device\n")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.CallerError("x"), 2),
        (errors.LeaseLost("x"), 1),
        (errors.ConfigError("x"), 1),
        (errors.JournalError("x"), 1),
        (errors.ConnectionLost("x"), 1),
        (KeyboardInterrupt(), 130),
    ],
)
def test_errors_of_a_group_become_exit_codes(error: BaseException, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(argv: list[str]) -> int:
        raise error

    monkeypatch.setattr(shell, "run", fail)
    assert exit_code("cli") == code


def test_the_servers_words_reach_it_untouched(monkeypatch: pytest.MonkeyPatch) -> None:
    got: list[list[str]] = []

    def run(argv: list[str]) -> int:
        got.append(argv)
        return 7

    module = ModuleType("penstock.broker.server")
    module.__dict__["run"] = run
    monkeypatch.setitem(sys.modules, "penstock.broker.server", module)
    words = ["my.conf", "--port", "7712", "--", "--unknown=1", "-x", "--help"]
    assert exit_code("server", *words) == 7
    assert got == [words]


def test_the_server_prints_a_configuration_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("server", "--print-config") == 0
    assert "port 7711" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "absent"),
    [
        (["--help"], ["rich", "prompt_toolkit", "hiredis", "asyncio", "pydantic", "penstock.broker"]),
        (["version"], ["typer", "rich", "prompt_toolkit", "hiredis", "asyncio"]),
        (["cli", "--help"], ["typer", "rich", "prompt_toolkit", "asyncio", "penstock.broker.core"]),
        (["server", "--help"], ["typer", "rich", "hiredis", "asyncio", "penstock.broker"]),
    ],
)
def test_a_command_loads_only_what_it_needs(words: list[str], absent: list[str]) -> None:
    ended = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "penstock.cli.main", *words],
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = {line.rpartition("|")[2].strip() for line in ended.stderr.splitlines()}
    assert "penstock.errors" in loaded
    assert sorted(loaded & set(absent)) == []


def test_every_groups_module_has_a_run() -> None:
    for group in GROUPS.values():
        assert callable(importlib.import_module(group.module).run)


def test_options_of_the_shell_end_at_the_command() -> None:
    options = parse(["-p", "7712", "ADDJOB", "q", "-h", "0", "--csv"])
    assert (options.port, options.output) == (7712, "")
    assert options.command == [b"ADDJOB", b"q", b"-h", b"0", b"--csv"]


def test_two_dashes_end_the_options_too() -> None:
    assert parse(["-r", "2", "--", "--odd", "name"]).command == [b"--odd", b"name"]


def test_the_password_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_PASSWORD", "from the environment")
    assert parse(["PING"]).password == "from the environment"
    assert parse(["-a", "given", "PING"]).password == "given"


@pytest.fixture
def unused_port() -> int:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


@pytest.fixture
def journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of 10 bytes of which a check says that 6 are good, whatever is in it."""
    path = tmp_path / "disque.aof"
    path.write_bytes(b"goodXXbad!")
    module = ModuleType("penstock.broker.recovery")
    result = SimpleNamespace(size=10, ok_up_to=6, records=2, jobs=1, problem="torn at byte 6", torn=True)
    module.__dict__["check"] = lambda _path: result
    monkeypatch.setitem(sys.modules, "penstock.broker.recovery", module)
    return path


def test_a_damaged_journal_is_exit_code_1_and_left_alone(journal: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check_aof.run([str(journal)]) == 1
    text = capsys.readouterr().out
    assert "size=10, ok_up_to=6, diff=4" in text
    assert "torn at byte 6" in text
    assert len(journal.read_bytes()) == 10


@pytest.mark.parametrize(("answer", "code", "left"), [("y\n", 0, 6), ("n\n", 1, 10), ("", 1, 10)])
def test_fix_asks_before_it_cuts(
    journal: Path, monkeypatch: pytest.MonkeyPatch, answer: str, code: int, left: int
) -> None:
    import io

    monkeypatch.setattr(sys, "stdin", io.StringIO(answer))
    assert check_aof.run(["--fix", str(journal)]) == code
    assert len(journal.read_bytes()) == left


def test_fix_with_yes_does_not_ask(journal: Path) -> None:
    assert check_aof.run(["--fix", "--yes", str(journal)]) == 0
    assert journal.read_bytes() == b"goodXX"


def test_fix_does_not_cut_a_file_that_grew_meanwhile(journal: Path) -> None:
    journal.write_bytes(b"goodXXbad! and more")
    with pytest.raises(errors.OperatorError, match="has changed"):
        check_aof.run(["--fix", "--yes", str(journal)])
    assert journal.read_bytes() == b"goodXXbad! and more"


def test_an_empty_journal_is_sound(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "disque.aof"
    path.touch()
    assert check_aof.run([str(path)]) == 0
    assert "AOF is valid" in capsys.readouterr().out
