"""Shows a broker at work: jobs go in, workers take them, the node is killed, and nothing is lost.

Everything here is real: a node of its own on a free port of this machine, in a temporary directory, and plain commands
over a connection. When the demo ends, however it ends, the node is stopped and the directory is gone.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from rich.console import Console
from rich.markup import escape

from penstock.client import Connection
from penstock.errors import ConnectionLost, PenstockError, ReplyError

QUEUE = "photos"
JOBS = 12
START_SECONDS_MAX = 30.0  # on a machine that is busy with other things
STOP_SECONDS_MAX = 10.0
ANSWER_SECONDS_MAX = 20.0
# Below the range from which the system takes ports for outgoing connections.
PORTS = range(11_000, 22_000)
INTERRUPTIONS = (signal.SIGINT, signal.SIGTERM)

console = Console(highlight=False, soft_wrap=True)


class DemoFailed(Exception):
    """Something was not as it should be; the text tells what."""


def title(text: str) -> None:
    console.print(f"\n[bold cyan]{escape(text)}[/]")


def say(text: str) -> None:
    console.print(f"  {text}")


def show(*words: object) -> None:
    """Print a command as one would type it."""
    console.print(f"  [green]$ penstock cli {escape(' '.join(map(str, words)))}[/]")


def check(holds: bool, what: str) -> None:
    if not holds:
        raise DemoFailed(f"this should be so and is not: {what}")


def free_port() -> int:
    while True:
        port = random.choice(PORTS)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold back Ctrl-C until a step is done: a process that was started but not yet noted could not be ended."""
    held: list[int] = []
    before = {number: signal.signal(number, lambda number, _: held.append(number)) for number in INTERRUPTIONS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if held:
        raise KeyboardInterrupt


class Node:
    """A node in a process of its own."""

    def __init__(self, directory: Path, port: int) -> None:
        self.directory = directory
        self.port = port
        self.log = directory / "log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> Connection:
        """Start it, and give a connection once it answers."""
        words = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.directory)]
        with self.log.open("ab") as log, uninterrupted():
            # In a session of its own, so that Ctrl-C reaches only us and we decide how the node ends.
            self.process = subprocess.Popen(
                [sys.executable, "-m", "penstock", "server", *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + START_SECONDS_MAX
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise DemoFailed(f"the node ended with code {self.process.returncode}:\n{self.last_words()}")
            link = Connection("127.0.0.1", self.port, timeout=1.0)
            try:
                link.execute("PING")
                link.timeout = ANSWER_SECONDS_MAX
                return link
            except (ConnectionLost, ReplyError):  # not there yet, or still reading its journal
                link.close()
                time.sleep(0.02)
        raise DemoFailed(f"the node didn't answer within {START_SECONDS_MAX:.0f} s:\n{self.last_words()}")

    def last_words(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-5:])

    def kill(self) -> None:
        """End it as a power switch would: no chance to save anything."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """End it in order, and by force if it doesn't."""
        if self.process is None or self.process.poll() is not None:
            return
        self.process.terminate()
        try:
            self.process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self.kill()


def text(value: bytes) -> str:
    return value.decode()


def balance(link: Connection, acked: int) -> tuple[int, int]:
    """Count what waits and what is out with workers, and check that every job is accounted for."""
    waiting: int = link.execute("QLEN", QUEUE)
    _, ids = link.execute("JSCAN", 0, "BUSYLOOP", "QUEUE", QUEUE, "STATE", "active")
    out = len(ids)
    sign = "=" if acked + waiting + out == JOBS else "!="
    say(f"[bold]{JOBS} added {sign} {acked} done + {waiting} waiting + {out} with workers[/]")
    check(sign == "=", "every job is done, waiting or with a worker")
    return waiting, out


def add(link: Connection) -> None:
    title("1. Add jobs")
    say(f"A producer puts {JOBS} jobs into the queue '{QUEUE}'. A queue needs no creation.")
    show("ADDJOB", QUEUE, '"resize photo 1"', 0)
    ids = link.pipeline([("ADDJOB", QUEUE, f"resize photo {number + 1}", 0) for number in range(JOBS)])
    errors = [reply for reply in ids if isinstance(reply, Exception)]
    check(not errors, f"every job is accepted, but: {errors[:1]}")
    say(f"{text(ids[0])}   the id of the first; the others have their own")


def work(link: Connection) -> int:
    """Get, ack and nack; gives how many jobs are done."""
    title("2. Get jobs, and say what became of them")
    show("GETJOB", "COUNT", 4, "FROM", QUEUE)
    jobs = link.execute("GETJOB", "COUNT", 4, "FROM", QUEUE)
    for _, job_id, body in jobs:
        say(f"{text(job_id)}   {text(body)}")
    first, second, third, _ = (job_id for _, job_id, _ in jobs)
    show("ACKJOB", "<the first two>")
    done: int = link.execute("ACKJOB", first, second)
    say(f"{done} jobs are done: they will never be delivered again.")
    show("NACK", "<the third>")
    check(link.execute("NACK", third) == 1, "the job goes back to its queue")
    say("The third could not be done: it goes back to its queue, in front of younger jobs.")
    show("GETJOB", "WITHCOUNTERS", "FROM", QUEUE)
    ((_, job_id, body, _, nacks, _, _),) = link.execute("GETJOB", "WITHCOUNTERS", "FROM", QUEUE)
    check((job_id, nacks) == (third, 1), "the job that was given back comes next, with its counter")
    say(f"{text(job_id)}   {text(body)}   [yellow]nacks: {nacks}[/]")
    say("Here it is again, and its counter says that it was given back once. This time it works:")
    show("ACKJOB", "<the third>")
    done += link.execute("ACKJOB", third)
    say("The fourth stays with its worker, who says nothing about it yet.")
    return done


def lease(link: Connection) -> tuple[bytes, bytes]:
    title("3. Lease a job")
    show("GETJOB", "LEASE", 60000, "FROM", QUEUE)
    ((_, job_id, body, token),) = link.execute("GETJOB", "LEASE", 60000, "FROM", QUEUE)
    say(f"{text(job_id)}   {text(body)}   [yellow]token: {text(token)}[/]")
    say("For 60 s this job is with whoever holds the token. After that the token is worth nothing.")
    return job_id, token


def crash(node: Node, link: Connection) -> Connection:
    title("4. Kill the node")
    link.close()
    assert node.process is not None
    console.print(f"  [red]$ kill -9 {node.process.pid}[/]")
    node.kill()
    say("The process is gone, without a chance to save anything. We start it again in the same directory.")
    began = time.monotonic()
    link = node.start()
    files = [path for path in sorted(node.directory.glob("*.aof*")) if path.suffix != ".lock"]
    sizes = " and ".join(f"{path.name} ({path.stat().st_size} bytes)" for path in files)
    say(f"It answers again after {time.monotonic() - began:.1f} s. What it remembers it read from {sizes}.")
    return link


def finish(link: Connection, acked: int, job_id: bytes, token: bytes) -> None:
    title("6. Finish")
    show("ACKLEASE", "<the leased job>", "<its token>")
    check(link.execute("ACKLEASE", job_id, token) == [b"OK"], "a lease outlives the crash")
    acked += 1
    say("OK: the lease is still good, and its worker can finish as if nothing had happened.")
    jobs: list[Any] = link.execute("GETJOB", "COUNT", JOBS, "FROM", QUEUE)
    acked += link.execute("ACKJOB", *(waiting_id for _, waiting_id, _ in jobs))
    say(f"Another worker takes the {len(jobs)} jobs that wait, and acks them.")
    balance(link, acked)
    _, (silent_id,) = link.execute("JSCAN", 0, "BUSYLOOP", "QUEUE", QUEUE, "REPLY", "id")
    reply = link.execute("SHOW", silent_id)
    facts = dict(zip(reply[::2], reply[1::2], strict=True))
    seconds = facts[b"next-requeue-within"] // 1000
    say(f"One worker is still silent. If it stays so, its job is queued again by itself in {seconds} s.")


def rescue(link: Connection) -> None:
    title("7. A worker that never comes back")
    show("ADDJOB", "mail", "hello", 0, "RETRY", 1)
    job_id = link.execute("ADDJOB", "mail", "hello", 0, "RETRY", 1)
    link.execute("GETJOB", "FROM", "mail")
    say("A job with a retry time of 1 s. A worker takes it, and dies. A second worker waits for a job:")
    show("GETJOB", "TIMEOUT", 10000, "WITHCOUNTERS", "FROM", "mail")
    began = time.monotonic()
    jobs = link.execute("GETJOB", "TIMEOUT", 10000, "WITHCOUNTERS", "FROM", "mail")
    check(bool(jobs) and jobs[0][1] == job_id, "the job comes to the second worker")
    say(f"It gets the job after {time.monotonic() - began:.1f} s, [yellow]additional-deliveries: {jobs[0][6]}[/].")
    link.execute("ACKJOB", job_id)


def run(node: Node) -> None:
    console.print("[bold]Penstock: a job queue. This is one broker node at work, on this machine.[/]")
    link = node.start()
    say(f"A node runs on port {node.port} (process {node.process.pid if node.process else '?'}).")
    add(link)
    acked = work(link)
    job_id, token = lease(link)
    before = balance(link, acked)
    link = crash(node, link)
    title("5. Count again")
    check(balance(link, acked) == before, "nothing has changed by the crash")
    say("Nothing was lost, nothing was delivered twice.")
    finish(link, acked, job_id, token)
    rescue(link)
    link.close()


@contextlib.contextmanager
def temporary_node(port: int | None) -> Iterator[Node]:
    with tempfile.TemporaryDirectory(prefix="penstock-demo-") as directory:
        node = Node(Path(directory), port or free_port())
        try:
            yield node
        finally:
            # A second Ctrl-C must not keep us from cleaning up after the first.
            for number in INTERRUPTIONS:
                signal.signal(number, signal.SIG_IGN)
            node.stop()


def _terminated(_number: int, _frame: object) -> NoReturn:
    raise KeyboardInterrupt


def main() -> int:
    parser = argparse.ArgumentParser(description="Show a broker node at work, from its first job to a crash and back.")
    parser.add_argument("--port", type=int, help="the port for the node (default: a free one)")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, _terminated)
    failure = ""
    try:
        with temporary_node(options.port) as node:
            run(node)
        title("Done")
        say("The node is stopped and its directory removed. To run one of your own: .venv/bin/penstock server")
        sys.stdout.flush()
    except KeyboardInterrupt:
        failure = "interrupted; the node is stopped and nothing is left behind"
    except BrokenPipeError:
        # Whoever read this has had enough (`| head`). Python would complain once more when it closes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (DemoFailed, PenstockError, OSError) as error:
        failure = f"failed: {error}"
    if failure:
        print(f"demo: {failure}", file=sys.stderr)
    return 1 if failure else 0


if __name__ == "__main__":
    sys.exit(main())
