"""The prompt of `penstock cli`: editing, history, completion and hints by prompt_toolkit.

Ctrl-C cancels the typed line or the running command; Ctrl-D, `quit` and `exit` end the prompt.
"""

import os
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.filters import is_done
from prompt_toolkit.formatted_text import FormattedText
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.layout.processors import AfterInput, ConditionalProcessor
from prompt_toolkit.output import ColorDepth

from penstock.cli.shell import command_help
from penstock.cli.shell.session import Session, describe, repetition, split_line, wants_color
from penstock.errors import CallerError, PeerError

HISTORY_FILE = "~/.penstock_history"
SLOW_SECONDS = 0.5  # the duration of slower commands is printed


class _Completer(Completer):
    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        before = document.text_before_cursor
        begun = before.rpartition(" ")[2]
        for word in command_help.completions(before):
            yield Completion(word, start_position=-len(begun))


def run(session: Session) -> int:
    """Read and run commands until the user ends the prompt."""
    try:
        session.connect()
    except PeerError as error:
        _complain(describe(error))
    prompt = _prompt_session()
    while True:
        text = f"{session.link.address}> " if session.link.connected else "not connected> "
        try:
            line = prompt.prompt(text)
        except KeyboardInterrupt:
            continue
        except EOFError:
            return 0
        if not _run_line(session, line):
            return 0


def _prompt_session() -> PromptSession[str]:
    prompt: PromptSession[str] = PromptSession(
        history=_history(),
        completer=_Completer(),
        complete_while_typing=False,
        color_depth=None if wants_color() else ColorDepth.MONOCHROME,
        enable_history_search=True,
    )

    def hint() -> FormattedText:
        text = prompt.default_buffer.document.text
        return FormattedText([("fg:ansibrightblack", command_help.hint(text))])

    prompt.input_processors = [ConditionalProcessor(AfterInput(hint), ~is_done)]
    return prompt


class _PrivateHistory(FileHistory):
    """A history that doesn't store passwords."""

    def store_string(self, string: str) -> None:
        words = string.lower().split()
        if "auth" not in words and "requirepass" not in words:
            super().store_string(string)


def _history() -> History:
    path = Path(HISTORY_FILE).expanduser()
    try:
        # Only for this user: it may have bodies of jobs.
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    except OSError:
        return InMemoryHistory()
    return _PrivateHistory(str(path))


def _run_line(session: Session, line: str) -> bool:
    """Run a typed line; returns False to end the prompt."""
    try:
        words = split_line(line)
    except CallerError as error:
        _complain(str(error))
        return True
    if not words:
        return True
    name = words[0].lower()
    if name in (b"quit", b"exit"):
        return False
    if name == b"clear":
        sys.stdout.write("\x1b[H\x1b[2J")
        sys.stdout.flush()
    elif name in (b"help", b"?"):
        print(command_help.help_text([word.decode("utf-8", "replace") for word in words[1:]]), end="")
    else:
        _run_remote(session, words)
    return True


def _run_remote(session: Session, words: list[bytes]) -> None:
    started = time.monotonic()
    try:
        if words[0].lower() == b"connect":
            _connect(session, words)
            return
        times, command = repetition(words)
        session.repeat(command, times, session.options.interval_s or 0)
        if command[0].lower() == b"monitor":
            _reconnect(session)
            return
    except CallerError as error:
        _complain(str(error))
    except PeerError as error:
        _complain(describe(error))
        _reconnect(session)
    except KeyboardInterrupt:
        print()
        _reconnect(session)
    elapsed = time.monotonic() - started
    if elapsed >= SLOW_SECONDS:
        print(f"({elapsed:.2f}s)")


def _connect(session: Session, words: list[bytes]) -> None:
    if len(words) != 3 or not words[2].isdigit() or not 0 < int(words[2]) < 65536:
        raise CallerError("Use: connect host port")
    session.connect_to(words[1].decode("utf-8", "replace"), int(words[2]))


def _reconnect(session: Session) -> None:
    """Try to connect once, so that the prompt shows the state of the link."""
    try:
        session.connect()
    except PeerError:
        session.link.close()


def _complain(text: str) -> None:
    sys.stdout.flush()
    print(text, file=sys.stderr)
