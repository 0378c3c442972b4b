"""A call of a command of `fsq`, and how one ends that can't be done."""

import sys
from dataclasses import dataclass

PERM = 100  # until the settings are read, which may say otherwise
TMP = 111


class UsageError(Exception):
    """The command line lacks something: the first line of the help, and 100."""


class BadValue(Exception):
    """A flag that is unknown or has an invalid value; or any other mistake that ends with a message and this status."""

    def __init__(self, text: str, status: int = TMP) -> None:
        super().__init__(text)
        self.status = status


Options = dict[str, list[str]]


@dataclass
class CommandCall:
    """A command that was called: its options by their long names, and its arguments."""

    program: str
    options: Options
    words: list[str]

    def has(self, name: str) -> bool:
        """Whether a flag was given."""
        return name in self.options

    def value(self, name: str) -> str | None:
        """Return a flag's value, the last one if there are several."""
        return self.options[name][-1] if name in self.options else None

    def number(self, name: str, lowest: int = 0) -> int | None:
        """Return a flag's value as a whole number."""
        text = self.value(name)
        if text is None:
            return None
        if not (text.isascii() and text.isdigit()) or int(text) < lowest:
            raise BadValue(f"invalid argument for flag: --{name}: {text}")
        return int(text)

    def say(self, text: str) -> None:
        """Print a message on standard error."""
        print(f"{self.program}: {text}", file=sys.stderr)

    def tell(self, text: str) -> None:
        """Print a message on standard error, with --verbose."""
        if self.has("verbose"):
            self.say(text)
