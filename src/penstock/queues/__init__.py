"""Queues in the store you already run: one API over memory, SQLite, PostgreSQL, Redis and the broker.

    connect(url) -> Store -> store.queue(name) -> Queue -> queue.reserve() -> Job

Read in this order: `capabilities` (what a store may be able to do), `aio.driver` (what a store must do), `aio.queue`
(what a queue makes of it), `aio.fetcher` (how callers wait for jobs), then a store in `stores`: the smallest is
`stores.memory`.

Everything under `aio` awaits. `blocking` has the same without an event loop: `scripts/blocking` writes it from `aio`,
but for the modules that deal with waiting itself, which are written by hand in both forms: `runtime`, `signal`,
`counters`, `fetcher`. A store that needs no server is a blocking driver; `aio.threaded` runs it in asyncio.
"""
