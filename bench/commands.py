"""What the loads send, for each server: one table of requests with the shape of their good replies.

All bodies are the same 12 bytes; those of the cluster, and of what stands beside it, 64. A reply is described by its
number of lines and a marker (see `bench.client`); the queue, list or tube is always `bench`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from bench.client import Reply
from bench.servers import encode

QUEUE = "bench"
# Not a number: Redis would store twelve digits as an integer, which is another body than ours.
BODY = "abcdefghijkl"
BODY_64 = BODY * 5 + "abcd"
MANY = 100
REPLICATE_3 = ("REPLICATE", "3")

JOB_ID = re.compile(rb"D-[0-9a-f]{8}-.{24}-[0-9a-f]{4}")
RESERVED_ID = re.compile(rb"RESERVED (\d+) ")


@dataclass(frozen=True)
class Command:
    """A request that can be repeated as it is; `words` is None where redis-benchmark cannot send it."""

    words: tuple[str, ...] | None
    request: bytes
    reply: Reply
    items: int = 1


def _resp(reply: Reply, *words: str, items: int = 1) -> Command:
    return Command(words, encode(*words), reply, items)


_BODIES = (BODY,) * MANY
_BODIES_64 = (BODY_64,) * MANY
_PUT = f"put 0 0 600 {len(BODY)}\r\n{BODY}\r\n".encode()

COMMANDS: dict[str, Command] = {
    "ADDJOB": _resp(Reply(1, b"-05a1\r\n"), "ADDJOB", QUEUE, BODY, "0"),
    # *1, *3, then length and text of queue, id and body.
    "GETJOB": _resp(Reply(8, b"*1\r\n"), "GETJOB", "FROM", QUEUE),
    "ADDJOBS": _resp(Reply(1 + MANY, b"*100\r\n"), "ADDJOBS", QUEUE, "0", "BODIES", *_BODIES, items=MANY),
    "GETJOB 100": _resp(Reply(1 + MANY * 7, b"*100\r\n"), "GETJOB", "COUNT", str(MANY), "FROM", QUEUE, items=MANY),
    "LPUSH": _resp(Reply(1, b":"), "LPUSH", QUEUE, BODY),
    "RPOP": _resp(Reply(2, b"$12\r\n"), "RPOP", QUEUE),
    "LPUSH 100": _resp(Reply(1, b":"), "LPUSH", QUEUE, *_BODIES, items=MANY),
    "RPOP 100": _resp(Reply(1 + MANY * 2, b"*100\r\n"), "RPOP", QUEUE, str(MANY), items=MANY),
    "ADDJOB x3": _resp(Reply(1, b"-05a1\r\n"), "ADDJOB", QUEUE, BODY_64, "0", *REPLICATE_3),
    "ADDJOBS x3": _resp(
        Reply(1 + MANY, b"*100\r\n"), "ADDJOBS", QUEUE, "0", *REPLICATE_3, "BODIES", *_BODIES_64, items=MANY
    ),
    "LPUSH 64 B": _resp(Reply(1, b":"), "LPUSH", QUEUE, BODY_64),
    "RPOP 64 B": _resp(Reply(2, b"$64\r\n"), "RPOP", QUEUE),
    "LPUSH 100 64 B": _resp(Reply(1, b":"), "LPUSH", QUEUE, *_BODIES_64, items=MANY),
    "RPOP 100 64 B": _resp(Reply(1 + MANY * 2, b"*100\r\n"), "RPOP", QUEUE, str(MANY), items=MANY),
    "put": Command(None, _PUT, Reply(1, b"INSERTED ")),
    "reserve": Command(None, b"reserve\r\n", Reply(2, b"RESERVED ")),
}

ACK_ONE = Reply(1, b":1\r\n")
ACK_MANY = Reply(1, b":100\r\n")
DELETED = Reply(1, b"DELETED\r\n")


def ack_requests(replies: Sequence[bytes], many: int) -> list[bytes]:
    """ACKJOB requests of `many` ids each, for all the jobs that these GETJOB replies hold."""
    ids = JOB_ID.findall(b"".join(replies))
    whole = len(ids) - len(ids) % many
    return [encode("ACKJOB", *ids[at : at + many]) for at in range(0, whole, many)]


def delete_requests(replies: Sequence[bytes]) -> list[bytes]:
    """beanstalkd's delete for all the jobs that these reserve replies hold."""
    return [b"delete %b\r\n" % number for number in RESERVED_ID.findall(b"".join(replies))]
