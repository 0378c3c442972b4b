"""The options of `penstock cli`: one table for the parser and the help.

They are those of the original tool, with its rules: options end at the first word that isn't one, everything after it
belongs to the command (`penstock cli ADDJOB q -h 0` adds the job `-h`), and `-h` alone prints the help.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.errors import CallerError

PASSWORD_VARIABLE = "PENSTOCK_PASSWORD"


@dataclass
class ShellOptions:
    """The parsed options. `command` is empty for a prompt or a script on standard input."""

    host: str = "127.0.0.1"
    port: int = 7711
    socket: str | None = None
    password: str | None = None
    repeat: int = 1
    repeat_given: bool = False
    interval_s: float | None = None
    stdin_last: bool = False
    delimiter: str = "\n"
    error_exit: bool = False
    output: str = ""  # raw, human, csv, json; empty: by whether stdout is a terminal
    mode: str = "command"  # or latency, latency-history, stat, pipe, intrinsic-latency, help, version
    seconds: int = 0  # of --intrinsic-latency
    pipe_timeout_s: int = 30
    tls: bool = False
    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    command: list[bytes] = field(default_factory=list)


class ShellOption(NamedTuple):
    """One option: `value` names its argument in the help, and is empty if it takes none."""

    names: tuple[str, ...]
    value: str
    help: str
    apply: Callable[[ShellOptions, str], None]


def _set(name: str, value: object = None) -> Callable[[ShellOptions, str], None]:
    """Store the option's argument, or a fixed value for an option without one."""
    return lambda options, word: setattr(options, name, word if value is None else value)


def _integer(name: str, lowest: int, highest: int) -> Callable[[ShellOptions, str], None]:
    def apply(options: ShellOptions, word: str) -> None:
        if not word.lstrip("-").isdecimal() or not lowest <= int(word) <= highest:
            raise CallerError(f"must be a whole number from {lowest} to {highest}, got {word!r}")
        setattr(options, name, int(word))

    return apply


def _repeat(options: ShellOptions, word: str) -> None:
    _integer("repeat", -1, 2**63 - 1)(options, word)
    options.repeat_given = True


def _interval(options: ShellOptions, word: str) -> None:
    try:
        options.interval_s = float(word)
    except ValueError:
        options.interval_s = -1
    if not 0 <= options.interval_s <= 86400:
        raise CallerError(f"must be a number of seconds from 0 to 86400, got {word!r}")


def _intrinsic(options: ShellOptions, word: str) -> None:
    _integer("seconds", 1, 86400)(options, word)
    options.mode = "intrinsic-latency"


OPTIONS: tuple[ShellOption, ...] = (
    ShellOption(("-h",), "host", "The node's host name or address (default 127.0.0.1).", _set("host")),
    ShellOption(("-p",), "port", "The node's port (default 7711).", _integer("port", 1, 65535)),
    ShellOption(("-s",), "socket", "The node's unix socket, in place of host and port.", _set("socket")),
    ShellOption(("-a",), "password", f"The node's password. Other users can read it in the process list: set the\n"
           f"variable {PASSWORD_VARIABLE} instead.", _set("password")),
    ShellOption(("-r",), "n", "Run the command n times, -1 without end; also the number of samples of --latency\n"
           "and the number of lines of --latency-history and --stat.", _repeat),
    ShellOption(("-i",), "seconds", "Time between repetitions, such as 0.1; or the time between lines\n"
           "of --stat (default 1) and --latency-history (default 15).", _interval),
    ShellOption(("-x",), "", "Read the last argument from standard input.", _set("stdin_last", True)),
    ShellOption(("-d",), "text", "The separator of items in raw form (default a line end).", _set("delimiter")),
    ShellOption(("-e",), "", "Exit code 1 if the node replies with an error; without it that is 0.",
           _set("error_exit", True)),
    ShellOption(("--raw",), "", "Replies as they are (the default if the output is not a terminal).",
           _set("output", "raw")),
    ShellOption(("--no-raw",), "", "Replies for people, also if the output is not a terminal.",
           _set("output", "human")),
    ShellOption(("--csv",), "", "Replies as lines of CSV.", _set("output", "csv")),
    ShellOption(("--json",), "", 'Replies as lines of JSON; bytes that are not UTF-8 as {"base64": ...}.',
           _set("output", "json")),
    ShellOption(("--latency",), "", "Measure how long a PING takes, until Ctrl-C.", _set("mode", "latency")),
    ShellOption(("--latency-history",), "", "The same, with a new line every 15 s.",
           _set("mode", "latency-history")),
    ShellOption(("--stat",), "", "Print a line of statistics of the node every second.", _set("mode", "stat")),
    ShellOption(("--pipe",), "", "Send commands in RESP from standard input as fast as the node accepts them.",
           _set("mode", "pipe")),
    ShellOption(("--pipe-timeout",), "n", "End --pipe after n seconds without a reply, 0: never (default 30).",
           _integer("pipe_timeout_s", 0, 86400)),
    ShellOption(("--intrinsic-latency",), "seconds",
           "Measure the pauses of this machine itself. Needs no node.", _intrinsic),
    ShellOption(("--tls",), "", "Connect with TLS.", _set("tls", True)),
    ShellOption(("--cacert",), "file", "Trust the certificates in this file (default: the system's).", _set("ca")),
    ShellOption(("--cert",), "file", "The client's certificate, if the node requires one.", _set("cert")),
    ShellOption(("--key",), "file", "The key of --cert.", _set("key")),
    ShellOption(("--help",), "", "Print this text.", _set("mode", "help")),
    ShellOption(("-v", "--version"), "", "Print the version.", _set("mode", "version")),
)  # fmt: skip

_BY_NAME = {name: option for option in OPTIONS for name in option.names}


def parse(argv: list[str]) -> ShellOptions:
    """Return the options of the words after `penstock cli`. Raises CallerError, which says what to do."""
    options = ShellOptions(password=os.environ.get(PASSWORD_VARIABLE))
    if argv == ["-h"]:
        options.mode = "help"
        return options
    at = 0
    while at < len(argv) and argv[at].startswith("-") and argv[at] != "-":
        word = argv[at]
        at += 1
        if word == "--":
            break
        option = _BY_NAME.get(word)
        if option is None:
            raise CallerError(f"Unrecognized option: {word}. `penstock cli --help` lists them all.")
        if option.value and at == len(argv):
            raise CallerError(f"{word} needs a value: {word} {option.value}")
        try:
            option.apply(options, argv[at] if option.value else "")
        except CallerError as error:
            raise CallerError(f"{word} {error}") from None
        at += bool(option.value)
    options.command = [os.fsencode(word) for word in argv[at:]]
    return _checked(options)


def _checked(options: ShellOptions) -> ShellOptions:
    if options.stdin_last and not options.command:
        raise CallerError("-x needs a command, such as: penstock cli -x ADDJOBS mail 0 BODIES")
    if options.mode != "command" and options.command:
        first = os.fsdecode(options.command[0])
        raise CallerError(f"--{options.mode} takes no command, got {first}")
    if options.key and not options.cert:
        raise CallerError("--key needs --cert, the certificate of the key.")
    if options.ca or options.cert:
        options.tls = True
    return options


def usage() -> str:
    """Return the help text, made from the table."""
    lines = ["usage: penstock cli [options] [command [argument ...]]", "", *_INTRODUCTION, "", "Options:"]
    for option in OPTIONS:
        names = ", ".join(option.names) + (f" <{option.value}>" if option.value else "")
        first, *more = option.help.splitlines()
        lines.append(f"  {names:<30}{first}")
        lines += [" " * 32 + line for line in more]
    return "\n".join([*lines, "", *_EXAMPLES, ""])


_INTRODUCTION = (
    "With a command: runs it and prints the reply. Without one: a prompt, or, if standard input is not a terminal,",
    "runs every line of it.",
)
_EXAMPLES = (
    "Examples:",
    "  penstock cli ADDJOB mail 'to: ann' 1000 RETRY 60",
    "  penstock cli --json GETJOB NOHANG COUNT 10 FROM mail",
    "  penstock cli -x ADDJOBS mail 1000 BODIES < letter.txt",
    "  penstock cli -r -1 -i 1 QLEN mail",
    "  penstock cli -p 7712 INFO jobs",
    "At the prompt: help, help @jobs, help ADDJOB, connect host port, 5 PING, clear, quit.",
    "",
    "Exit codes: 0 done (also if the node replied with an error, unless -e), 1 no connection or, with -e,",
    "an error, 2 a wrong option, 130 interrupted.",
)
