"""Which function runs which command. The names are those of `table.COMMANDS`; a test compares them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.broker.clients import Client
from penstock.broker.commands import cluster, connection, jobs, leases, moving, queues, server

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

Handler = Callable[["Broker", Client, list[bytes]], bytes | None]

HANDLERS: dict[str, Handler] = {
    "auth": connection.auth,
    "ping": connection.ping,
    "hello": connection.hello,
    "client": connection.client,
    "info": server.info,
    "shutdown": server.shutdown,
    "monitor": server.monitor,
    "debug": server.debug,
    "config": server.config,
    "slowlog": server.slowlog,
    "time": server.time,
    "command": server.command,
    "latency": server.latency,
    "bgrewriteaof": server.bgrewriteaof,
    "cluster": cluster.cluster,
    "addjob": jobs.addjob,
    "addjobs": jobs.addjobs,
    "getjob": jobs.getjob,
    "ackjob": jobs.ackjob,
    "fastack": jobs.fastack,
    "deljob": jobs.deljob,
    "enqueue": jobs.enqueue,
    "nack": jobs.nack,
    "dequeue": jobs.dequeue,
    "working": jobs.working,
    "loadjob": jobs.loadjob,
    "show": queues.show,
    "qlen": queues.qlen,
    "qsize": queues.qsize,
    "qpeek": queues.qpeek,
    "qstat": queues.qstat,
    "pause": queues.pause,
    "qscan": queues.qscan,
    "jscan": queues.jscan,
    "acklease": leases.acklease,
    "begin": leases.begin,
    "nacklease": leases.nacklease,
    "release": leases.release,
    "lease": leases.lease,
    "extend": leases.extend,
    "claim": leases.claim,
    "ackclaim": leases.ackclaim,
    "nackclaim": leases.nackclaim,
    "extendclaim": leases.extendclaim,
    "movejobs": moving.movejobs,
}

# For pipelines: how to run several requests of one kind at once. Given the requests and a place among them, it tells
# how many it ran, which may be none, and gives their replies.
RunHandler = Callable[["Broker", Client, list[list[bytes]], int], tuple[int, bytes | None]]

RUN_HANDLERS: dict[str, RunHandler] = {"addjob": jobs.addjob_run, "getjob": jobs.getjob_run}
