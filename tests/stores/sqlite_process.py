"""A process that works on a queue until it is killed: `python -m tests.stores.sqlite_process ROLE URL QUEUE LOG`.

What it was answered, it writes to its log at once, a line each: so whoever killed it knows what it must find.

    push     an id for each job that was stored
    work     `took ID TRIES` for each job that it got, `acked ID` for each that it ended
    pop      waits for one job, and writes its payload
"""

from __future__ import annotations

import os
import sys

from penstock import blocking

LEASE_S = 10_000.0  # nothing comes back by itself while the test runs


def main(role: str, url: str, name: str, log: str) -> None:
    lines = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(line: str) -> None:
        os.write(lines, f"{line}\n".encode())

    with blocking.connect(url, lease=LEASE_S, poll=300) as store:
        queue = store.queue(name)
        write("ready")
        if role == "pop":
            job = queue.pop()
            write(str(job.payload) if job else "nothing")
            return
        number = 0
        while role == "push":
            number += 1
            for job_id in queue.push_many(range(5)) if number % 4 == 0 else [queue.push(number)]:
                write(job_id)
        while True:
            for job in queue.reserve_many(3, timeout=None):
                write(f"took {job.id} {job.tries}")
                job.ack()
                write(f"acked {job.id}")


if __name__ == "__main__":
    main(*sys.argv[1:])
