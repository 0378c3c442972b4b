"""The modes of `penstock cli`, which does what the original's `disque` tool does, with the same options.

One command, a script on standard input, a prompt, --pipe, or a measurement. The last three are modules of their own,
which are imported when they are used.
"""

import io
import sys

from penstock.cli.shell.options import ShellOptions, parse, usage
from penstock.cli.shell.session import Session, describe, repetition, split_line
from penstock.errors import CallerError, PeerError


def run(argv: list[str]) -> int:
    """Run `penstock cli` with these words; returns the exit code."""
    options = parse(argv)
    try:
        return _run(options)
    except PeerError as error:
        sys.stdout.flush()
        print(describe(error), file=sys.stderr)
        return 1


def _run(options: ShellOptions) -> int:
    if options.mode == "help":
        print(usage(), end="")
        return 0
    if options.mode == "version":
        from penstock.cli import version

        return version.run([])
    if options.mode == "pipe":
        from penstock.cli.shell import pipe

        return pipe.run(options)
    if options.mode != "command":
        from penstock.cli.shell import measurements

        return measurements.run(options)
    if options.command:
        return _one_shot(options)
    if sys.stdin.isatty() and sys.stdout.isatty():
        from penstock.cli.shell import prompt

        return prompt.run(Session(options))
    return _script(options)


def _one_shot(options: ShellOptions) -> int:
    words = list(options.command)
    if options.stdin_last:
        words.append(sys.stdin.buffer.read())
    session = Session(options)
    session.repeat(words, options.repeat, options.interval_s or 0)
    return _exit_code(session)


def _script(options: ShellOptions) -> int:
    """Run every line of standard input as a command. A wrong line is reported, and the next one runs."""
    session = Session(options)
    session.connect()
    # Bytes that are not UTF-8 are passed on as surrogates.
    lines = io.TextIOWrapper(sys.stdin.buffer, encoding="utf-8", errors="surrogateescape")
    for number, line in enumerate(lines, 1):
        try:
            words = split_line(line)
        except CallerError as error:
            print(f"line {number}: {error}", file=sys.stderr)
            session.errors += 1
            continue
        if words and words[0].lower() in (b"quit", b"exit"):
            break
        if words and not words[0].startswith(b"#"):
            repeat, words = repetition(words)
            session.repeat(words, repeat, options.interval_s or 0)
    return _exit_code(session)


def _exit_code(session: Session) -> int:
    return 1 if session.options.error_exit and session.errors else 0
