"""Statistics in Redis, as Keuss keeps them: one hash a queue.

| key                         | field     | value                                                            |
|-----------------------------|-----------|------------------------------------------------------------------|
| keuss:stats:NAMESPACE:QUEUE | name, ns  | the queue's name and the namespace                               |
|                             | opts      | JSON of the options that the queue was registered with           |
|                             | counter_X | a number; X is put, get, reserve, commit, rollback, deadletter   |
|                             | paused    | `true` or `false`; absent is not paused                          |

Nothing expires. The list of queues is the list of these keys.
"""

from collections.abc import Mapping
from typing import Any

from penstock.codec import from_json, to_json
from penstock.errors import OutcomeUnknown
from penstock.queues.aio.stats import COUNTERS, Stats
from penstock.queues.options import StoreURL
from penstock.queues.stores.redis.aio.link import RedisLink
from penstock.queues.stores.redis.keys import name_in_cluster, pattern_of, queue_in_cluster, stats_key
from penstock.queues.stores.redis.scripts import Argument

_COUNTER = b"counter_"


class RedisStats(Stats):
    """The hashes of one namespace."""

    def __init__(self, address: StoreURL, extra: dict[str, Any], namespace: str, link: RedisLink | None = None) -> None:
        self._owns_link = link is None
        self._link = RedisLink(address, extra) if link is None else link
        self._namespace = namespace
        self._prefix = stats_key(namespace, "")

    async def open(self) -> None:
        if self._owns_link:
            await self._link.open()

    async def close(self) -> None:
        if self._owns_link:
            await self._link.close()

    def _key(self, queue: str) -> bytes:
        return self._prefix + (name_in_cluster(queue) if self._link.is_cluster else queue).encode()

    async def add(self, counts: Mapping[str, Mapping[str, int]]) -> None:
        batches: list[list[list[Argument]]] = [
            [[b"HINCRBY", self._key(queue), f"counter_{counter}", much] for counter, much in counters.items()]
            for queue, counters in counts.items()
        ]
        if not self._link.is_cluster:
            batches = [[command for batch in batches for command in batch]]
        for batch in batches:
            try:
                await self._link.call_many(batch, key=batch[0][1], idempotent=False)
            except OutcomeUnknown:
                # The caller would add the same again: better to miss a count than to count twice.
                continue

    async def counters(self, queue: str) -> dict[str, int]:
        counted = {
            name[len(_COUNTER) :].decode(errors="replace"): int(value)
            for name, value in (await self._all(queue)).items()
            if name.startswith(_COUNTER)
        }
        return {**dict.fromkeys(COUNTERS, 0), **counted}

    async def _all(self, queue: str) -> dict[bytes, bytes]:
        key = self._key(queue)
        reply = await self._link.call(b"HGETALL", key, key=key)
        # A client that was given may speak RESP3, which has maps.
        return reply if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2], strict=True))

    async def register(self, queue: str, options: Mapping[str, Any]) -> None:
        key = self._key(queue)
        keep: list[Argument] = (
            [b"HSET", key, b"opts", to_json(dict(options))] if options else [b"HSETNX", key, b"opts", b"{}"]
        )
        await self._link.call_many([[b"HSET", key, b"name", queue, b"ns", self._namespace], keep], key=key)

    async def options(self, queue: str) -> dict[str, Any]:
        key = self._key(queue)
        text = await self._link.call(b"HGET", key, b"opts", key=key)
        try:
            options = from_json(text or b"{}")
        except ValueError:
            return {}
        return options if isinstance(options, dict) else {}

    async def queues(self) -> list[str]:
        found = await self._link.scan(pattern_of(self._prefix))
        names = [key[len(self._prefix) :].decode(errors="replace") for key in found if key != self._prefix]
        return [queue_in_cluster(name) for name in names] if self._link.is_cluster else names

    async def paused(self, queue: str) -> bool:
        key = self._key(queue)
        return bool(await self._link.call(b"HGET", key, b"paused", key=key) == b"true")

    async def set_paused(self, queue: str, paused: bool) -> None:
        key = self._key(queue)
        await self._link.call(b"HSET", key, b"paused", b"true" if paused else b"false", key=key)
