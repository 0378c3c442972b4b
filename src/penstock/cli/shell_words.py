"""A line that a person typed, as the words of a command. Quotes: see `wire.words`."""

from penstock.errors import CallerError
from penstock.wire import split_words


def split(line: str) -> list[bytes]:
    """The words of a line. Raises CallerError where quotes don't close as they should."""
    # A terminal gives bytes that are not UTF-8 as surrogates: they go out as they came in.
    try:
        return split_words(line.encode("utf-8", "surrogateescape"))
    except ValueError as error:
        raise CallerError(f"Invalid argument(s): {error}") from None


def repetition(words: list[bytes]) -> tuple[int, list[bytes]]:
    """`5 PING` is PING five times."""
    if len(words) > 1 and words[0].isdigit():
        return int(words[0]), words[1:]
    return 1, words
