"""Help, man pages and the reference of `fsq`, all made from its tables."""

import textwrap

from penstock.cli.fsq.table import COMMANDS, LAUNCHER, Flag, FsqCommand
from penstock.fsq.constants import SETTINGS

WIDTH = 100
EXIT_CODES = (
    "0: done, also if items failed. 100: the command line lacks something (FSQ_FAIL_PERM). 111: it could not be done,"
    " or not all of it (FSQ_FAIL_TMP)."
)
LAUNCHER_SYNTAX = "[flags] COMMAND [argument ...]"
LAUNCHER_TEXT = (
    "Queues are directories, items are files in them, and nothing runs in between. Flags come before the first"
    " argument; arguments after it may begin with a dash."
)


def usage_line(program: str, command: FsqCommand | None) -> str:
    """Return the first line of a help text."""
    if command is None:
        return f"usage: {program} {LAUNCHER_SYNTAX}"
    return f"usage: {program} [flags] {command.syntax}"


def help_text(program: str, command: FsqCommand | None) -> str:
    """Return what -h prints."""
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
    """Return the lines of -l."""
    return ["Commands:", *(f"  {name.ljust(11)}{command.summary}" for name, command in COMMANDS.items())]


def _description(command: FsqCommand | None) -> str:
    return LAUNCHER_TEXT if command is None else f"{command.summary} {command.text}"


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH)


# The standard, section by section, for fsq(7). A tuple is a term and its text.
STANDARD: dict[str, list[str | tuple[str, str]]] = {
    "DESCRIPTION": [
        (
            "FSQ is a standard for queues in a file system. A queue is a directory, an item of work is a file in it,"
            " and no server runs in between: programs in any language that follow this page can work on the same"
            " queues at the same time. Every change is one atomic operation of a POSIX file system: link, rename or"
            " unlink."
        ),
    ],
    "DIRECTORIES": [
        (
            "All queues are directories below FSQ_ROOT. A queue's name is any text without / and NUL that is not"
            " empty, . or .. . A queue has these entries; the first four must be on one file system:"
        ),
        (
            "tmp/",
            "Items that are being written. It is never scanned.",
        ),
        (
            "queue/",
            "Items that wait, and items that are being worked on.",
        ),
        (
            "done/",
            "Items that succeeded. Nothing removes them by itself; see fsq-purge(1).",
        ),
        (
            "fail/",
            "Items that failed for good. See fsq-redrive(1).",
        ),
        (
            "down",
            "While this file exists, nothing is scanned.",
        ),
        (
            "trigger-s",
            "A FIFO: a byte written to it wakes programs that wait for the queue.",
        ),
        (
            "hosts/",
            "One queue for each host, with the entries above.",
        ),
        (
            "hosts-trigger-s",
            "The FIFO that wakes programs that wait for the host queues.",
        ),
    ],
    "NAMES": [
        (
            "An item's name has a delimiter in front of each field: time, entropy, process id, host name, tries, and"
            " then one field for each argument. For example _20261115184212_0_18383_web1_0_a%5fb_x%2fy is an item"
            " with the arguments a_b and x/y."
        ),
        (
            "The first character of the name is its delimiter. The time is local time in the format of FSQ_TIMEFMT."
            " Entropy counts the items that one process makes within one tick of that time. Tries is the number of"
            " attempts so far. The delimiter, the escape character and / are written as the escape character and two"
            " lower-case hexadecimal digits; everything else stands as it is, in UTF-8. NUL is refused, and so are"
            " names longer than the file system allows, 255 bytes on most."
        ),
    ],
    "WORK": [
        (
            "enqueue",
            "Write and sync the item in tmp, link it into queue, sync queue. It appears at once and complete.",
        ),
        (
            "scan",
            (
                "List queue, oldest first by time and entropy. Open an item, take an exclusive flock(2) on it, and"
                " check that the name still leads to the same file. Items that are locked or gone are skipped."
            ),
        ),
        (
            "complete",
            "Rename the item to done or fail while the lock is held, and sync both directories, the target first.",
        ),
        (
            "retry",
            (
                "Rename the item within queue, with tries increased by one. An item that had FSQ_MAX_TRIES attempts,"
                " is older than FSQ_TTL or has a name that can't be read goes to fail."
            ),
        ),
    ],
    "EXIT CODES OF WORKERS": [
        (
            "A program that is started for an item ends with FSQ_SUCCESS (0): done; FSQ_FAIL_TMP (111): try again;"
            " FSQ_FAIL_PERM (100): failed for good."
        ),
    ],
}


# Variables that are not settings of the library: they can't be changed with `set_const`.
COMMAND_VARIABLES = {"FSQ_TOKEN": "The token of fsq-jsonrpcd(1) and fsq-push(1). Ours. Default: not set."}
# What `fsq scan` adds to the environment of a worker: `penstock.fsq.engine`.
ITEM_VARIABLES = {
    "FSQ_ITEM_ID": "The item's name, as it is in the directory.",
    "FSQ_ITEM_ENQUEUED_AT": "The time in the name, in the format of FSQ_TIMEFMT.",
    "FSQ_ITEM_ENTROPY": "The entropy in the name.",
    "FSQ_ITEM_PID": "The id of the process that enqueued the item.",
    "FSQ_ITEM_HOSTNAME": "The name of the host on which it was enqueued.",
    "FSQ_ITEM_TRIES": "The number of attempts before this one.",
    "FSQ_ITEM_HOST": "The host whose queue the item is in; only for items of host queues.",
}


def man_pages() -> dict[str, str]:
    """Return every man page by its path below the directory of man pages."""
    pages = {f"man1/fsq-{name}.1": _page(f"fsq-{name}", f"fsq {name}", row) for name, row in COMMANDS.items()}
    return {"man1/fsq.1": _page("fsq", "fsq", None), **pages, "man7/fsq.7": _standard_page()}


def _standard_page() -> str:
    lines = [
        '.\\" Written by scripts/man from src/penstock/cli/fsq/man.py: change that, then run `make docs`.',
        '.TH FSQ 7 "" Penstock "Directories as queues"',
        ".SH NAME",
        "fsq \\- the standard for queues that are directories",
    ]
    for title, texts in STANDARD.items():
        lines.append(f".SH {title}")
        for text in texts:
            if isinstance(text, str):
                lines += [".PP", _roff(text)]
            else:
                lines += [".TP", f".B {_roff(text[0])}", _roff(text[1])]
    return "\n".join([*lines, *_environment(), *_of_workers(), ".SH SEE ALSO", "\\fBfsq\\fR(1)"]) + "\n"


def _environment() -> list[str]:
    """Return the section ENVIRONMENT: every variable that is read, its default and its meaning."""
    lines = [".SH ENVIRONMENT", "Settings are read when a program starts. Programs that share a queue need the same."]
    for name, row in SETTINGS.items():
        default = "not set" if row.default is None else f"{row.default:05o}" if name.endswith("_MODE") else row.default
        lines += [".TP", f".B {name}", _roff(f"{row.meaning[0].upper()}{row.meaning[1:]}. Default: {default}.")]
    for name, meaning in COMMAND_VARIABLES.items():
        lines += [".TP", f".B {name}", _roff(meaning)]
    return lines


def _of_workers() -> list[str]:
    """Return the section about the variables of workers."""
    text = "A program that is started for an item has these variables besides, unless the scan was told to set none:"
    lines = [".SH ENVIRONMENT OF WORKERS", text]
    for name, meaning in ITEM_VARIABLES.items():
        lines += [".TP", f".B {name}", _roff(meaning)]
    return lines


def _page(title: str, program: str, command: FsqCommand | None) -> str:
    syntax = LAUNCHER_SYNTAX if command is None else f"[flags] {command.syntax}"
    summary = "directories as queues" if command is None else command.summary.rstrip(".")
    lines = [
        '.\\" Written by scripts/man from src/penstock/cli/fsq/table.py: change that, then run `make docs`.',
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
    lines += _environment() if command is None else []
    others = [f"fsq-{name}" for name in COMMANDS] if command is None else ["fsq"]
    pages = [*(f"\\fB{_roff(name)}\\fR(1)" for name in others), "\\fBfsq\\fR(7)"]
    lines += [".SH SEE ALSO", ", ".join(pages)]
    return "\n".join(lines) + "\n"


def _roff(text: str) -> str:
    """Protect what troff would take for a command."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{text}" if text[:1] in (".", "'") else text


def reference() -> str:
    """Return the page of docs/reference."""
    parts = [
        "# The command fsq\n",
        "<!-- Written by scripts/man from src/penstock/cli/fsq/table.py: change that, then run `make docs`. -->\n",
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
