"""`penstock check-aof`: checks whether a journal is valid, and where it is damaged.

With --fix everything from the first damaged byte on is cut off: what a crash in the middle of a write leaves behind.
The node does the same when it starts (aof-load-truncated), but only at the very end of the file.
"""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.errors import CallerError, OperatorError

if TYPE_CHECKING:
    from penstock.broker.recovery import CheckResult

SHORT_USAGE = "Use: penstock check-aof [--fix] [--yes] file"
USAGE = """\
usage: penstock check-aof [--fix] [--yes] file

Reads a journal (Penstock's or Disque's) from start to end, and prints how far it is valid.

  --fix    cut the file off where the damage begins, after asking; the jobs behind that are lost. A file that can be
           read but doesn't match its checksums is kept, and its checksums are removed
  --yes    don't ask

Stop the node that writes the file first, and keep a copy before you --fix it.
Exit codes: 0 valid or repaired, 1 damaged, 2 a wrong option.
"""


def run(argv: list[str]) -> int:
    """Check a file, and with --fix repair it; returns the exit code."""
    if any(word in ("-h", "--help") for word in argv):
        print(USAGE, end="")
        return 0
    flags = {word for word in argv if word.startswith("--")}
    names = [word for word in argv if not word.startswith("--")]
    unknown = flags - {"--fix", "--yes"}
    if unknown:
        raise CallerError(f"Unrecognized option: {min(unknown)}. {SHORT_USAGE}")
    if len(names) != 1:
        raise CallerError(f"penstock check-aof needs one journal file, got {len(names)}. {SHORT_USAGE}")
    path = Path(names[0])
    if not path.is_file():
        raise CallerError(f"{path} must be a file that exists.")
    return _check(path, fix="--fix" in flags, ask="--yes" not in flags)


def _check(path: Path, *, fix: bool, ask: bool) -> int:
    # Imported here, so that --help and errors in options don't load the broker.
    from penstock.broker.recovery import check

    try:
        result = check(str(path))
    except OSError as error:
        raise OperatorError(f"Can't read {path}: {error.strerror}") from error
    lost = result.size - result.ok_up_to
    print(f"AOF analyzed: size={result.size}, ok_up_to={result.ok_up_to}, diff={lost}")
    print(f"{result.records} records, {result.jobs} jobs")
    if result.problem is None:
        print("AOF is valid")
        return 0
    print(result.problem)
    if not result.torn:
        print("This is not just a torn tail: there may be valid jobs behind the damage.")
    if not fix:
        print("AOF is not valid. Keep a copy of it, then cut the damage off with --fix.", file=sys.stderr)
        return 1
    return _cut(path, result, ask=ask)


def _cut(path: Path, result: "CheckResult", *, ask: bool) -> int:
    lost = result.size - result.ok_up_to
    if not lost:
        return _accept(path, ask=ask)
    print(f"This will shrink {path} from {result.size} to {result.ok_up_to} bytes; {lost} bytes are lost.")
    if ask and not _agreed("Continue? [y/N]: "):
        print("Nothing was changed.")
        return 1
    try:
        with path.open("r+b") as file:
            # A node that still runs has appended meanwhile: the file is not the one that was checked.
            if os.fstat(file.fileno()).st_size != result.size:
                raise OperatorError(f"{path} has changed while it was checked. Stop the node first.")
            _remove_checksums(path)  # they cover what is cut off, too
            file.truncate(result.ok_up_to)
            os.fsync(file.fileno())
    except OSError as error:
        raise OperatorError(f"Can't cut {path}: {error.strerror}") from error
    print("Successfully truncated AOF")
    return 0


def _accept(path: Path, *, ask: bool) -> int:
    """Keep a file that can be read, but doesn't match its checksums."""
    print(f"All of {path} can be read, so nothing is cut; the contents of the damaged block may be wrong.")
    print("This will remove its checksums, so that a node starts with it.")
    if ask and not _agreed("Continue? [y/N]: "):
        print("Nothing was changed.")
        return 1
    _remove_checksums(path)
    print("Successfully removed the checksums")
    return 0


def _remove_checksums(path: Path) -> None:
    """Remove the checksums of a journal. A node writes new ones when it starts."""
    path.with_name(path.name.removesuffix(".state") + ".sum").unlink(missing_ok=True)


def _agreed(question: str) -> bool:
    print(question, end="", flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
