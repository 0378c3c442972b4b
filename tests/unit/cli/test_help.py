"""What the prompt explains, completes and hints at: all of it from the table of commands."""

import pytest

from penstock.broker.commands.table import COMMANDS, GROUPS
from penstock.cli.shell import command_help
from penstock.cli.shell.session import repetition, split_line
from penstock.errors import CallerError


@pytest.mark.parametrize("name", COMMANDS)
def test_help_explains_every_command(name: str) -> None:
    text = command_help.help_text([name])
    assert text == command_help.help_text([name.upper()])
    assert COMMANDS[name].syntax in text
    assert COMMANDS[name].summary in text


@pytest.mark.parametrize("group", GROUPS)
def test_help_of_a_group_lists_its_commands_and_no_others(group: str) -> None:
    text = command_help.help_text([f"@{group}"])
    assert text.count("summary:") == sum(info.group == group for info in COMMANDS.values())


def test_help_alone_names_every_command() -> None:
    words = command_help.help_text([]).split()
    assert {name.upper() for name in COMMANDS} <= set(words)


@pytest.mark.parametrize("topic", ["nope", "@nope"])
def test_help_on_nothing_says_what_to_do(topic: str) -> None:
    assert command_help.help_text([topic]).startswith("There is no ")


def test_help_distinguishes_our_commands_from_the_originals() -> None:
    assert "Disque has no such command" in command_help.help_text(["CLAIM"])
    assert "Disque has no such command" not in command_help.help_text(["GETJOB"])


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        ("ADDJ", ["ADDJOB", "ADDJOBS"]),
        ("addj", ["addjob", "addjobs"]),
        ("3 qle", ["qlen"]),
        ("conn", ["connect"]),
        ("GETJOB NO", ["NOHANG"]),
        ("getjob nohang le", ["lease"]),
        ("CLUSTER M", ["MEET", "MYID"]),
        ("help @q", ["@queues"]),
        ("help CLA", ["CLAIM"]),
        ("ADDJOB ", []),
        ("NOPE x", []),
    ],
)
def test_completion(before: str, expected: list[str]) -> None:
    assert command_help.completions(before) == expected


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("QPEEK", " queue count"),
        ("qpeek ", "queue count"),
        ("QPEEK q", " count"),
        ("2 QPEEK q", " count"),
        ("QPEEK q 1", ""),
        ("NACK", " [AFTER ms] id [id ...]"),
        ("HELLO", " [2|3 [AUTH user password] [SETNAME name]]"),
        ("SLOWLOG", " GET [count] | LEN | RESET"),
        ("SLOWLOG get ", "[count]"),
        ("CLUSTER MEET 127.0.0.1", " port"),
        ("connect", " host port"),
        ("NOPE", ""),
        ("", ""),
    ],
)
def test_hint(typed: str, expected: str) -> None:
    assert command_help.hint(typed) == expected


def test_a_line_is_split_into_bytes() -> None:
    assert split_line("ADDJOB 'my q' \"\\xff\\n\" é\udcff") == [
        b"ADDJOB", b"my q", b"\xff\n", b"\xc3\xa9\xff"
    ]  # fmt: skip


def test_a_quote_that_is_not_closed_is_the_users_error() -> None:
    with pytest.raises(CallerError, match=r"Invalid argument\(s\)"):
        split_line('PING "x')


def test_a_number_in_front_repeats() -> None:
    assert repetition([b"5", b"PING"]) == (5, [b"PING"])
    assert repetition([b"5"]) == (1, [b"5"])
