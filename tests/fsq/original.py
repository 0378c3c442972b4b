"""A stand-in for the original, which runs on Python 2 only: its protocol by the reference, defects and all.

    python original.py enqueue ROOT QUEUE COUNT PREFIX    put items in, as the original does
    python original.py scan ROOT QUEUE LOG                run what is there: write its name into LOG, then done

Its scanner opens, then locks, and never looks again: so it may run an item that somebody has just finished.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
import time


def enqueue(base: str, count: int, prefix: str) -> None:
    """Create in tmp, sync, link into queue, unlink."""
    for number in range(count):
        at = time.strftime("%Y%m%d%H%M%S")
        name = f"_{at}_{number}_{os.getpid()}_orig_0_{prefix}{number}"
        fd = os.open(f"{base}/tmp/{name}", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o640)
        os.write(fd, prefix.encode())
        os.fsync(fd)
        os.close(fd)
        os.link(f"{base}/tmp/{name}", f"{base}/queue/{name}")
        os.unlink(f"{base}/tmp/{name}")


def scan(base: str, log: str) -> None:
    """Walk the names; skip what is gone or locked; run it; rename it; unlock."""
    for name in sorted(os.listdir(f"{base}/queue")):
        if os.path.exists(f"{base}/down"):
            return
        try:
            fd = os.open(f"{base}/queue/{name}", os.O_RDONLY)
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            continue
        note(log, name, "original")
        with contextlib.suppress(FileNotFoundError):
            os.rename(f"{base}/queue/{name}", f"{base}/done/{name}")
        os.close(fd)


def note(log: str, name: str, who: str) -> None:
    """One line, written at once."""
    fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(fd, f"{who} {name}\n".encode())
    os.close(fd)


def wait_for_all(log: str) -> None:
    """Say that we are ready, and wait for the word: so that those who load fast don't do all the work."""
    note(f"{log}.ready", str(os.getpid()), "ready")
    while not os.path.exists(f"{log}.go"):
        time.sleep(0.001)


if __name__ == "__main__":
    command, root, queue = sys.argv[1:4]
    if command == "enqueue":
        enqueue(f"{root}/{queue}", int(sys.argv[4]), sys.argv[5])
    else:
        wait_for_all(sys.argv[4])
        while os.listdir(f"{root}/{queue}/queue"):
            scan(f"{root}/{queue}", sys.argv[4])
