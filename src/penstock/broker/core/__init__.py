"""The node as a state machine: jobs, queues, timers, leases, and the nodes that hold each job.

Read the modules in this order: `inputs` (everything that can happen to a node), `jobs` (the record and its states),
`ids`, `timers`, `queues`, `registry`, `node` (all state of one node), then what happens to a job: `adding`, `delivery`
(queue, fetch, requeue), `waiters` (clients that wait), `tokens` and `leases` (reservations and claims), `acks` (and
removal), `memory`, `eviction`, `restoring` (from a journal). Between nodes: `membership`, `gossip`, `outbox`,
`replication`, `requeueing`, `federation`, `draining`. What is refused, with which text, is in `refusals`.

Three rules hold here:

1. No clock, socket, file or randomness of its own. The shell sets `node.now_ms` (monotonic) and `node.wall_offset_ms`
   before each input and gives the node a source of random bytes. The simulator does the same with virtual ones.
2. Answers are values and refusals (`refusals.Refused`); only `broker.commands` knows how RESP looks.
3. Every duration runs on the monotonic clock. The wall clock stamps creation times and what is stored or sent, so that
   a jump of the wall clock neither releases a job early nor expires one.
"""
