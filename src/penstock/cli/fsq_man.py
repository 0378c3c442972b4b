"""Help, man pages and the reference of `fsq`, all made from its tables."""

import textwrap

from penstock.cli.fsq_table import COMMANDS, LAUNCHER, Command, Flag

WIDTH = 100
EXIT_CODES = (
    "0: done, also if items failed. 100: the command line lacks something (FSQ_FAIL_PERM). 111: it could not be done,"
    " or not all of it (FSQ_FAIL_TMP)."
)
LAUNCHER_SYNTAX = "[flags] COMMAND [argument ...]"
LAUNCHER_TEXT = (
    "Queues are directories, items are files in them, and nothing runs in between. Flags stand before the first"
    " argument that is none; what follows may begin with a dash."
)


def usage_line(program: str, command: Command | None) -> str:
    """Give the first line of a help text."""
    if command is None:
        return f"usage: {program} {LAUNCHER_SYNTAX}"
    return f"usage: {program} [flags] {command.syntax}"


def help_text(program: str, command: Command | None) -> str:
    """Give what -h prints."""
    flags = LAUNCHER if command is None else command.flags
    lines = [usage_line(program, command), "", *_wrapped(_description(command)), "", "Flags:"]
    width = max(len(flag.names) for flag in flags) + 4
    for flag in flags:
        text = textwrap.wrap(flag.text, WIDTH - width)
        lines.append(f"  {flag.names}".ljust(width) + text[0])
        lines += [" " * width + more for more in text[1:]]
    if command is None:
        lines += ["", *command_list()]
    return "\n".join([*lines, "", *_wrapped(f"Exit codes: {EXIT_CODES}"), ""])


def command_list() -> list[str]:
    """Give the lines of -l."""
    return ["Commands:", *(f"  {name.ljust(11)}{command.summary}" for name, command in COMMANDS.items())]


def _description(command: Command | None) -> str:
    return LAUNCHER_TEXT if command is None else f"{command.summary} {command.text}"


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH)


def man_pages() -> dict[str, str]:
    """Give every man page by its file name."""
    pages = {f"fsq-{name}.1": _page(f"fsq-{name}", f"fsq {name}", command) for name, command in COMMANDS.items()}
    return {"fsq.1": _page("fsq", "fsq", None), **pages}


def _page(title: str, program: str, command: Command | None) -> str:
    syntax = LAUNCHER_SYNTAX if command is None else f"[flags] {command.syntax}"
    summary = "directories as queues" if command is None else command.summary.rstrip(".")
    lines = [
        '.\\" Written by scripts/man from src/penstock/cli/fsq_table.py: change that, then run `make docs`.',
        f'.TH {_roff(title.upper())} 1 "" Penstock "Directories as queues"',
        ".SH NAME",
        f"{_roff(title)} \\- {_roff(summary[0].lower() + summary[1:])}",
        ".SH SYNOPSIS",
        f".B {_roff(program)}",
        _roff(syntax),
        ".SH DESCRIPTION",
        _roff(_description(command)),
    ]
    if command is None:
        lines.append(".SH COMMANDS")
        for name, row in COMMANDS.items():
            lines += [".TP", f".B {_roff(name)}", _roff(row.summary)]
    lines.append(".SH FLAGS")
    for flag in LAUNCHER if command is None else command.flags:
        lines += [".TP", f".B {_roff(flag.names)}", _roff(flag.text)]
    lines += [".SH EXIT STATUS", _roff(EXIT_CODES)]
    others = [f"fsq-{name}" for name in COMMANDS] if command is None else ["fsq"]
    lines += [".SH SEE ALSO", ", ".join(f"\\fB{_roff(name)}\\fR(1)" for name in others)]
    return "\n".join(lines) + "\n"


def _roff(text: str) -> str:
    """Protect what troff would take for a command."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{text}" if text[:1] in (".", "'") else text


def reference() -> str:
    """Give the page of docs/reference."""
    parts = [
        "# The command fsq\n",
        "<!-- Written by scripts/man from src/penstock/cli/fsq_table.py: change that, then run `make docs`. -->\n",
        "`fsq` and `penstock fsq` are the same. *Ours* marks what the original doesn't have. What the directories and",
        "names look like, the settings and the Python names are in [directories as queues](fsq.md).\n",
        f"```text\nfsq {LAUNCHER_SYNTAX}\n```\n",
        f"{LAUNCHER_TEXT}\n",
        *_flag_rows(LAUNCHER),
        f"\nExit codes. {EXIT_CODES}",
    ]
    for name, command in COMMANDS.items():
        ours = " *Ours.*" if command.ours else ""
        parts += [f"\n## fsq {name}\n", f"```text\nfsq {name} [flags] {command.syntax}\n```\n"]
        parts += [f"{_description(command)}{ours}\n", *_flag_rows(command.flags)]
    return "\n".join(parts) + "\n"


def _flag_rows(flags: tuple[Flag, ...]) -> list[str]:
    return ["| flag | |", "|---|---|", *(f"| `{flag.names}` | {flag.text} |" for flag in flags)]
