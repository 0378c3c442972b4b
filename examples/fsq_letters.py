"""A queue that is a directory: letters come in as files, and are sent with a few tries each.

    python examples/fsq_letters.py /var/spool/letters

Other programs enqueue and scan the same directory: `fsq enqueue`, `fsq scan`, or the original FSQ.
"""

import sys
from pathlib import Path

from penstock import fsq

QUEUE = "letters"
MAX_TRIES = 3


def send(to: str, text: str) -> None:
    if "@" not in to:
        raise ValueError(f"{to!r} is not an address")
    if to.endswith(".down"):
        raise ConnectionError(f"the server of {to} is down")
    print("sent to", to, "-", text)


def main(root: str) -> None:
    Path(root).mkdir(parents=True, exist_ok=True)
    fsq.set_const("FSQ_ROOT", root)
    if not Path(root, QUEUE).is_dir():
        fsq.install(QUEUE)
    for to in ("ann@example.com", "bob@example.down", "nobody"):
        fsq.senqueue(QUEUE, f"Dear {to.partition('@')[0]}, ...", to)
    for _ in range(MAX_TRIES):
        for item in fsq.scan(QUEUE, max_tries=MAX_TRIES):
            try:
                send(item.arguments[0], item.item.read().decode())
            except ValueError as problem:
                print("failed:", problem)
                fsq.fail_perm(item)
            except ConnectionError as problem:
                print("later:", problem)
                try:
                    fsq.fail_tmp(item)
                except fsq.FSQMaxTriesError:
                    print("given up:", item.arguments[0])
            else:
                fsq.success(item)


if __name__ == "__main__":
    main(sys.argv[1])
