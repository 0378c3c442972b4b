"""Clients that work: each connection takes jobs, acknowledges them, and takes the next.

What they take is known only when it comes, so nothing but the GETJOB is encoded beforehand. Otherwise this is the
client of `bench.client`: replies are known by their number of lines, and every acknowledgement must be a good one.
"""

from __future__ import annotations

import time

from bench.client import RECEIVE_BYTES, SILENCE_S_MAX, Client, Rate
from bench.commands import COMMANDS, JOB_ID
from bench.servers import NotRunError, encode

_ACK_HEAD, _ACK_TAIL = encode("ACKJOB", b"." * 40).split(b"." * 40)


class Workers(Client):
    """Connections that take and acknowledge jobs, `depth` at a time."""

    def work(self, jobs: int, depth: int) -> Rate:
        """Take and acknowledge `jobs` jobs, which must be there, in whole batches."""
        batches = max(1, jobs // depth)
        server_cpu_s, client_cpu_s = self.server.cpu_s(), time.process_time()
        begin_s = time.perf_counter()
        self._take_and_acknowledge(batches, depth)
        wall_s = time.perf_counter() - begin_s
        client_cpu_s = time.process_time() - client_cpu_s
        return Rate(batches * depth, wall_s, self.server.cpu_s() - server_cpu_s, client_cpu_s)

    def _take_and_acknowledge(self, batches: int, depth: int) -> None:
        get = COMMANDS["GETJOB"]
        request, lines_of_jobs, acknowledged = get.request * depth, get.reply.lines * depth, b":1\r\n" * depth
        left = batches
        active = 0
        holds_jobs: dict[int, bool] = {}  # by socket: whether it waits for acknowledgements, or else for jobs
        for fd, link in self.by_fd.items():
            if left:
                left -= 1
                active += 1
                holds_jobs[fd] = False
                link.lines_due = lines_of_jobs
                link.send(request)
        while active:
            events = self.epoll.poll(SILENCE_S_MAX)
            if not events:
                raise NotRunError(f"no reply for {SILENCE_S_MAX:.0f} s, with {active} connections waiting")
            for fd, _ in events:
                link = self.by_fd[fd]
                data = link.receive(RECEIVE_BYTES)
                link.lines_due -= data.count(b"\n")
                if not data or data.startswith(b"-"):
                    raise NotRunError(f"the server answered {data[:80]!r}")
                if link.held:
                    data, link.held = link.held + data, b""
                if link.lines_due > 0:
                    link.held = data
                elif not holds_jobs[fd]:
                    holds_jobs[fd] = True
                    link.lines_due = depth
                    link.send(_acknowledgements(data, depth))
                elif data != acknowledged:
                    raise NotRunError(f"ACKJOB was answered by {data[:80]!r}")
                elif left:
                    left -= 1
                    holds_jobs[fd] = False
                    link.lines_due = lines_of_jobs
                    link.send(request)
                else:
                    active -= 1


def _acknowledgements(replies: bytes, depth: int) -> bytes:
    ids = JOB_ID.findall(replies)
    if len(ids) != depth:
        raise NotRunError(f"GETJOB was answered by {replies[:80]!r}")
    return b"".join([_ACK_HEAD + job_id + _ACK_TAIL for job_id in ids])
