"""The help and the completions of the prompt, made from the table of commands."""

import re

from penstock.broker.commands.table import COMMANDS, GROUPS, CommandInfo

# The prompt's own words, and how they are used.
LOCAL = {
    "help": "help [command | @group]",
    "connect": "connect host port",
    "clear": "clear",
    "quit": "quit",
    "exit": "exit",
}

_LITERAL = re.compile(r"[A-Z][A-Z-]+")
_BRACKETED = re.compile(r"\[[^\[\]]*(?:\[[^\[\]]*\][^\[\]]*)*\]|\S+")


def help_text(words: list[str]) -> str:
    """Return the answer to `help ...`."""
    if not words:
        return _overview()
    topic = " ".join(words)
    if topic.startswith("@"):
        group = topic[1:].lower()
        if group not in GROUPS:
            return f"There is no group {topic}. Groups: " + " ".join(f"@{name}" for name in GROUPS) + "\n"
        return "\n".join(entry(info) for info in COMMANDS.values() if info.group == group)
    info = COMMANDS.get(words[0].lower())
    if info is None:
        return f"There is no command {topic}. `help` lists the groups, `help @jobs` the commands of one.\n"
    return entry(info)


def entry(info: CommandInfo) -> str:
    """Return the entry of one command."""
    lines = [f"  {info.syntax}", f"  summary: {info.summary}", f"  reply: {info.reply}"]
    lines += [f"  error: {text}" for text in info.errors]
    ours = " (Penstock only; Disque has no such command)" if info.extension else ""
    lines.append(f"  group: {info.group}{ours}")
    return "\n".join(lines) + "\n"


def _overview() -> str:
    lines = ["help <command> explains one command, help @<group> all of a group:"]
    for group in GROUPS:
        names = " ".join(info.name.upper() for info in COMMANDS.values() if info.group == group)
        lines.append(f"  @{group:<11}{names}")
    lines.append("Here at the prompt: connect <host> <port>, <n> <command> to repeat it, clear, quit.")
    return "\n".join(lines) + "\n"


def completions(before: str) -> list[str]:
    """Return the words that can follow the text before the cursor, in the case of the typed letters."""
    words = before.split(" ")
    begun, earlier = words[-1], [word for word in words[:-1] if word]
    if earlier and earlier[0].isdecimal():
        earlier = earlier[1:]  # `5 PING` repeats
    if not earlier:
        found = [*LOCAL, *(name.upper() for name in COMMANDS)]
    elif earlier[0].lower() == "help":
        found = [*(f"@{group}" for group in GROUPS), *(name.upper() for name in COMMANDS)]
    else:
        info = COMMANDS.get(earlier[0].lower())
        found = option_words(info) if info and begun else []
    matches = [word for word in found if word.lower().startswith(begun.lower())]
    lower = begun.islower()
    return [word.lower() if lower else word for word in matches]


def option_words(info: CommandInfo) -> list[str]:
    """Return the literal words of a command's syntax, without its name."""
    literals = _LITERAL.findall(info.syntax.partition(" ")[2])
    return list(dict.fromkeys(literals))


def hint(typed: str) -> str:
    """Return the rest of the syntax after the typed text."""
    words = typed.split()
    if words and words[0].isdecimal():
        words = words[1:]
    if not words:
        return ""
    info = COMMANDS.get(words[0].lower())
    syntax = info.syntax if info else LOCAL.get(words[0].lower(), "")
    rest = _alternative(syntax.partition(" ")[2], words[1:])
    parts = _BRACKETED.findall(rest)
    # Which option a word belongs to is only known by parsing the command: so only required arguments are removed.
    for _ in words[1:]:
        if not parts or parts[0].startswith("["):
            break
        parts.pop(0)
    rest = " ".join(parts)
    return rest if typed.endswith(" ") or not rest else f" {rest}"


def _alternative(syntax: str, words: list[str]) -> str:
    """Return the alternative of `GET [count] | LEN | RESET` that the first word names; all of them without a word."""
    if " | " not in syntax or syntax.startswith("[") or not words:
        return syntax
    named = [part for part in syntax.split(" | ") if part.split()[0] == words[0].upper()]
    return named[0] if named else ""
