"""`fsq`, also `penstock fsq`: directories as queues on the command line.

Finds the command, parses its flags by the tables of `table`, and turns errors into messages and exit codes: 0,
100 for a command line that lacks something, 111 for what could not be done. A user's own commands are Python files in
FSQ_EXEC_DIR, each with a `main(argv)` that returns a status.
"""

import errno
import getopt
import os
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any, NoReturn

from penstock.cli import output
from penstock.cli.fsq.call import PERM, TMP, BadValue, CommandCall, Options, UsageError
from penstock.cli.fsq.table import COMMANDS, LAUNCHER, Flag, FsqCommand
from penstock.errors import PenstockError

SETTINGS = {
    "charset": "FSQ_CHARSET",
    "exec-dir": "FSQ_EXEC_DIR",
    "root-dir": "FSQ_ROOT",
    "queue-dir": "FSQ_QUEUE",
    "tmp-dir": "FSQ_TMP",
    "done-dir": "FSQ_DONE",
    "fail-dir": "FSQ_FAIL",
    "down-file": "FSQ_DOWN",
    "trigger-fifo": "FSQ_TRIGGER",
}


def main(argv: list[str] | None = None, program: str | None = None) -> NoReturn:
    """The entry point of `fsq`."""
    try:
        status = run(sys.argv[1:] if argv is None else argv, program or Path(sys.argv[0]).stem)
        sys.stdout.flush()
    except KeyboardInterrupt:
        status = 130
    except OSError as error:
        status = TMP
        if problem := output.abandon_stdout(error):
            _complain("fsq", problem)
    sys.exit(status)


def run(argv: list[str], program: str = "penstock fsq") -> int:
    """Run `fsq` with these words, and return the exit status."""
    label = program
    command: FsqCommand | None = None
    try:
        options, words = parse(LAUNCHER, argv)
        status = _answer(options, program)
        if status is not None:
            return status
        if not words:
            raise UsageError
        label = f"{program} {words[0]}"
        command = COMMANDS.get(words[0])
        _configure(options)
        return _dispatch(program, words)
    except UsageError:
        print(_rendering().usage_line(label, command), file=sys.stderr)
        return _code("FSQ_FAIL_PERM", PERM)
    except BadValue as error:
        _complain(label, str(error))
        return error.status
    except PenstockError as error:
        _complain(label, _described(error))
        return _code("FSQ_FAIL_TMP", TMP)
    except (OSError, TypeError, ValueError) as error:
        if isinstance(error, BrokenPipeError):
            raise
        _complain(label, _described(error))
        return _code("FSQ_FAIL_TMP", TMP)


def parse(flags: tuple[Flag, ...], argv: list[str]) -> tuple[Options, list[str]]:
    """Parse the flags at the beginning; the first word that isn't a flag ends them."""
    short = "".join(flag.short + ":" * bool(flag.value) for flag in flags if flag.short)
    long = [flag.long + "=" * bool(flag.value) for flag in flags]
    names = {f"-{flag.short}": flag.long for flag in flags if flag.short}
    try:
        found, words = getopt.getopt(argv, short, long)
    except getopt.GetoptError as error:
        dash = "-" if len(error.opt) == 1 else "--"
        raise BadValue(f"invalid flag: {dash}{error.opt} ({error.msg})") from None
    options: Options = {}
    for name, value in found:
        options.setdefault(names.get(name, name.removeprefix("--")), []).append(value)
    return options, words


def _answer(options: Options, program: str) -> int | None:
    """Do what needs no command."""
    if "help" in options:
        print(_rendering().help_text(program, None), end="")
        return 0
    if "list" in options:
        print("\n".join(_rendering().command_list()[1:]))
        return 0
    if "version" in options:
        from penstock import __version__

        print(f"{program} {__version__}")
        return 0
    return None


def _configure(options: Options) -> None:
    """Bring the flags of the launcher into the settings."""
    from penstock.fsq import constants

    if "FSQ_CHARSET" not in os.environ:
        constants.set_const("FSQ_CHARSET", sys.getfilesystemencoding())
    for flag, setting in SETTINGS.items():
        if flag in options:
            constants.set_const(setting, options[flag][-1])


def _dispatch(program: str, words: list[str]) -> int:
    name = words[0]
    if "/" in name or "." in name:
        raise BadValue(f"illegal prog argument: {name}")
    command = COMMANDS.get(name)
    if command is None:
        return _run_file(f"{program} {name}", name, words[1:])
    label = f"{program} {name}"
    options, rest = parse(command.flags, words[1:])
    if "help" in options:
        print(_rendering().help_text(label, command), end="")
        return 0
    return _load(command)(CommandCall(label, options, [_text(word) for word in rest]))


def _load(command: FsqCommand) -> Callable[[CommandCall], int]:
    module, _, function = command.function.partition(":")
    found: Callable[[CommandCall], int] = getattr(import_module(f"penstock.cli.fsq.{module}"), function)
    return found


def _text(word: str) -> str:
    """Return an argument as text of the charset; other bytes are an error."""
    from penstock.fsq.constants import coerce_text
    from penstock.fsq.errors import FSQCoerceError

    if word.isascii():
        return word
    try:
        return coerce_text(os.fsencode(word))
    except FSQCoerceError as error:
        raise FSQCoerceError(errno.EINVAL, f"cannot coerce {os.fsencode(word)!r}") from error


def _run_file(label: str, name: str, words: list[str]) -> int:
    """Run a command of the user's own."""
    from penstock.fsq.constants import const

    directory = const("FSQ_EXEC_DIR")
    for path in (Path(directory) / f"{name}.py", Path(directory) / name) if directory else ():
        if path.is_file():
            loader = SourceFileLoader(f"fsq_command_{name}", str(path))
            spec = spec_from_loader(loader.name, loader)
            assert spec is not None
            module = module_from_spec(spec)
            loader.exec_module(module)
            return int(module.main([label, *words]) or 0)
    raise BadValue(f"command not found: {name}; (try --list)")


def _rendering() -> Any:
    """Return the module of help texts, loaded only when they are printed."""
    return import_module("penstock.cli.fsq.man")


def _described(error: Exception) -> str:
    from penstock.fsq.errors import describe

    return describe(error)


def _code(setting: str, default: int) -> int:
    """An exit code by the settings, if those can be read at all."""
    try:
        from penstock.fsq.constants import number_of

        return number_of(setting)
    except PenstockError:
        return default


def _complain(label: str, text: str) -> None:
    print(f"{label}: {text}", file=sys.stderr)
