"""Other people's queues, measured one way: what ours are held against.

The contract of a peer, in Python or in Node: a command that measures and prints one line of JSON. `commands.py`
has the table of all peers and their settings; `measure(run)` there runs the right command and gives its line as a dict:

    from bench.queue_peers.commands import RUNS, measure

Underneath, and by hand (the Node programs are given servers, those of Python start a Redis themselves):

    .venv-bench/bin/python -m bench.queue_peers.run PEER [--settings S] [--jobs N] [--latencies N] [--results]
    node bench/queue_peers/node/bullmq.js REDIS_PORT JOBS LATENCIES
    node bench/queue_peers/node/keuss.js BACKEND alone|shared JOBS LATENCIES REDIS_PORT [POSTGRES_PORT USER DATABASE]

and all of them as a table, from our own environment once `scripts/setup bench` has made theirs:

    .venv/bin/python -m bench.queue_peers [--only PATTERN] [--jobs N] [--latencies N] [--json FILE]

Each run has servers of its own: a Redis without persistence, a PostgreSQL with its defaults (it syncs). What libraries
that run jobs answer, times in seconds unless the name says otherwise:

| field | meaning |
|---|---|
| `peer`, `version`, `settings` | the library, its version, and which of the ways to run its worker this was |
| `jobs` | how many no-op jobs: one is done when its handler has been called and has appended a byte to a file |
| `enqueue_s` | all enqueued the fastest way the library documents, by one process, with no worker running |
| `run_s` | all run by one worker process that was started on the full queue: from the first done to the last |
| `end_to_end_s` | as many again, with that worker up and idle: from the first enqueue to the last done |
| `latency_p50_ms`, `latency_p99_ms` | one job at a time, worker idle: from the call that enqueues to the handler |

`run_s` leaves out how long a worker takes to start, which says nothing about a queue. `end_to_end_s` is what libraries
are compared by: producer, Redis and worker at once, as in use.

Keuss is a queue and runs nothing. It answers with `push_per_s`, `pop_per_s` and `reserve_ok_per_s` (a reserve and its
ok count as one), with `in_flight` (50) calls under way, and with the latencies from a push to a pop or reserve that
waits in another process.

A module of a peer (`celery_peer.py`) has the ways to run its worker that its documentation names, the one it begins
with first, and says in its docstring why.
"""
