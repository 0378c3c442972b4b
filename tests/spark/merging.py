"""Merges folders of batches over and over, and is killed at a later moment each time.

    python merging.py DIRECTORY

The kill is a SIGKILL of the process itself, right before its n-th change of the file system. After each, the
merge is finished as the next drain would do it, and read. All that needs Arrow, which has threads, happens in forks.
Prints a line for each kill: the rows that were read after it, and the folders that there are.
"""

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet

from penstock.spark.parquet import finish_merge, merge

FOLDERS = 3
CHANGES = {"os.rename", "os.mkdir", "open"}
REMOVALS = {"os.remove", "os.rmdir"}


def make(directory: Path) -> None:
    for number in range(FOLDERS):
        folder = directory / f"batch={number}"
        folder.mkdir(parents=True)
        pa.parquet.write_table(pa.table({"id": [f"{number}a", f"{number}b"]}), folder / "part-0.parquet")
        (folder / "_SUCCESS").touch()


def merge_until(directory: Path, change: int) -> None:
    left = change

    def count(event: str, args: tuple[object, ...]) -> None:
        nonlocal left
        # Names within a tree that is removed are told without their directory.
        if event in REMOVALS or (event in CHANGES and str(directory) in str(args[0])):
            left -= 1
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)
    merge(directory, FOLDERS)


def finish(directory: Path, told: Path) -> None:
    finish_merge(directory)
    files = directory.glob("batch=*/*.parquet")
    ids = sorted(one for file in files for one in pa.parquet.ParquetFile(file).read()["id"].to_pylist())
    told.write_text(json.dumps([ids, sorted(path.name for path in directory.iterdir() if path.name[0] != "_")]))


def in_fork(call: Callable[..., None], *args: object) -> int:
    """How the process ended: the signal that killed it, or 0."""
    child = os.fork()
    if not child:
        code = 1
        try:
            call(*args)
            code = 0
        finally:
            os._exit(code)
    return os.WTERMSIG(os.waitpid(child, 0)[1])


def main(place: Path) -> None:
    template = place / "template"
    in_fork(make, template)
    change, is_killed = 0, True
    while is_killed:
        change += 1
        directory, told = place / str(change), place / "told"
        told.unlink(missing_ok=True)
        shutil.copytree(template, directory)
        is_killed = in_fork(merge_until, directory, change) == signal.SIGKILL
        in_fork(finish, directory, told)
        sys.stdout.write(told.read_text() + "\n")
        shutil.rmtree(directory)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
