"""Node Keuss by itself, on our servers: what it does and what it stores is what our stores are written against.

Both versions on Redis, the newer on PostgreSQL, which the older does not know.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from tests.interop.keuss_peer import (
    NEW,
    OLD,
    KeussElement,
    KeussError,
    KeussFactory,
    KeussPeer,
    postgres_options,
    redis_options,
    redis_pubsub,
    redis_stats,
)
from tests.processes import need_module, wait_until
from tests.servers import PostgresServer, RedisServer

pytestmark = pytest.mark.interop

UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}"
FAR_S = 2_000_000_000  # in 2033
LISTS = [(NEW, "redis-list"), (OLD, "redis-list")]
ORDERED = [(NEW, "redis-oq"), (OLD, "redis-oq"), (NEW, "postgres")]  # those that can reserve and schedule


@dataclass
class Kind:
    """A version of Keuss on a backend."""

    version: str
    backend: str
    open: Callable[..., KeussFactory]


@pytest.fixture
def kind(request: pytest.FixtureRequest, keuss: KeussPeer) -> Kind:
    version, backend = request.param

    def open_one(**options: Any) -> KeussFactory:
        if backend == "postgres":
            connection = postgres_options(request.getfixturevalue("postgres_server"))
        else:
            connection = redis_options(request.getfixturevalue("redis_server"))
        return keuss.open(backend, connection, version=version, **options)

    return Kind(version, backend, open_one)


def on(*kinds: list[tuple[str, str]]) -> pytest.MarkDecorator:
    """Run on each of these versions and backends."""
    each = [pair for some in kinds for pair in some]
    return pytest.mark.parametrize(
        "kind", each, ids=[f"{backend}-{version}" for version, backend in each], indirect=True
    )


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@pytest.fixture
def raw(redis_server: RedisServer) -> Any:
    with redis_server.client(decode_responses=True) as client:
        yield client


@on(LISTS, ORDERED)
def test_what_is_pushed_is_popped_in_order(kind: Kind, queue_name: str) -> None:
    queue = kind.open().queue(queue_name)
    sent = [{"a": 1, "list": [1, "zwei"]}, ["x"], "text", 4.5]
    for number, payload in enumerate(sent):
        queue.push(payload, mature=time.time() - 10 + number)  # a list goes by the order of pushes alone
    assert queue.size() == 4
    assert [queue.pop(5000).payload for _ in sent] == sent
    assert (queue.size(), queue.stats()["put"], queue.stats()["get"]) == (0, 4, 4)


@on([(NEW, "redis-list"), (NEW, "redis-oq"), (NEW, "postgres")])
def test_bytes_and_headers_come_back(kind: Kind, queue_name: str) -> None:
    queue = kind.open().queue(queue_name)
    queue.push(b"\x00\xff\x01", hdrs={"h": 1, "g": "x"})
    element = queue.pop(5000)
    assert (element.payload, element.hdrs) == (b"\x00\xff\x01", {"h": 1, "g": "x"})


@on(LISTS, ORDERED)
def test_a_pop_whose_time_is_over_returns_nothing(kind: Kind, queue_name: str) -> None:
    assert kind.open().queue(queue_name).pop(50) is None


@on(LISTS, ORDERED)
def test_a_waiting_pop_is_cancelled_by_name(kind: Kind, queue_name: str) -> None:
    queue = kind.open().queue(queue_name)
    one, other = queue.begin_pop(tid="one"), queue.begin_pop(tid="other")
    wait_until(lambda: queue.consumers() == 2)
    queue.cancel("one")
    with pytest.raises(KeussError, match=r"^cancel$"):
        one.result(10)
    queue.push("for the other")
    assert KeussElement.of(other.result(10)).payload == "for the other"


@on(ORDERED)
def test_a_reserved_element_is_committed_once(kind: Kind, queue_name: str) -> None:
    queue = kind.open(reserve_delay=30).queue(queue_name)
    queue.push({"a": 1})
    element = queue.reserve(5000)
    assert (element.payload, element.tries, queue.size(), queue.total_size()) == ({"a": 1}, 0, 0, 1)
    assert queue.next_t() == pytest.approx(now_ms() + 30_000, abs=5000)
    assert queue.ok(element) is True
    if kind.version == NEW:  # before 1.6.8 the script fails
        assert queue.ok(element) is False
    assert queue.total_size() == 0


@on(ORDERED)
def test_an_element_given_back_is_tried_again(kind: Kind, queue_name: str) -> None:
    queue = kind.open().queue(queue_name)
    queue.push("again")
    first = queue.reserve(5000)
    assert queue.ko(first, now_ms() - 1) is True
    second = queue.reserve(5000)
    assert (second.id, second.tries) == (first.id, 1)


@on(ORDERED)
def test_a_scheduled_element_comes_when_it_is_due(kind: Kind, queue_name: str) -> None:
    queue = kind.open().queue(queue_name)
    queue.push("late", delay=0.4)
    queue.push("never", mature=FAR_S)
    assert (queue.size(), queue.sched_size()) == (0, 2)
    began = now_ms()
    assert queue.pop(5000).payload == "late"
    assert now_ms() - began > 250
    assert queue.next_t() == FAR_S * 1000


@on(ORDERED)
def test_after_max_ko_it_is_a_dead_letter(kind: Kind, queue_name: str) -> None:
    dead_name = f"{queue_name}-dead"
    factory = kind.open(deadletter={"max_ko": 1, "queue": dead_name})
    queue, dead = factory.queue(queue_name), factory.queue(dead_name)
    queue.push("poison")
    results = [queue.ko(queue.reserve(5000), now_ms() - 1) for _ in range(3)]
    assert results == [True, True, "deadletter" if kind.version == NEW else False]
    element = dead.pop(5000)
    assert (element.payload, element.tries, queue.total_size()) == ("poison", 0, 0)
    if kind.version == NEW:
        assert (element.hdrs["x-dl-from-queue"], element.hdrs["x-dl-tries"]) == (queue_name, 2)
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", element.hdrs["x-dl-t"])


@on([(NEW, "redis-oq"), (NEW, "postgres")])
def test_an_element_is_removed_by_id(kind: Kind, queue_name: str) -> None:
    queue = kind.open().queue(queue_name)
    job_id = queue.push("unwanted")
    assert [queue.remove(job_id), queue.remove(job_id), queue.total_size()] == [True, False, 0]


@on([(NEW, "postgres")])
def test_an_error_of_keuss_is_raised_with_its_text(kind: Kind, queue_name: str) -> None:
    with pytest.raises(KeussError, match="can not be used as commit id"):
        kind.open().queue(queue_name).ok("no-uuid")


@on([(NEW, "redis-oq"), (OLD, "redis-oq")])
def test_processes_wake_and_pause_each_other(kind: Kind, queue_name: str, redis_server: RedisServer, raw: Any) -> None:
    shared = {"signaller": redis_pubsub(redis_server), "stats": redis_stats(redis_server)}
    here, there = kind.open(**shared).queue(queue_name), kind.open(**shared).queue(queue_name)
    waiting = there.begin_pop()
    wait_until(lambda: there.consumers() == 1)
    assert here.pause() is True
    wait_until(lambda: any(signal["message"] == "p true" for signal in here.peer.signals()))
    here.push("wake up")
    assert raw.hget(f"keuss:stats:N:{queue_name}", "paused") == "true"
    assert not waiting.done()
    here.pause(False)
    assert KeussElement.of(waiting.result(10)).payload == "wake up"
    wait_until(lambda: here.stats().get("put") == there.stats().get("get") == 1)


def test_a_drained_queue_returns_nothing_any_more(keuss: KeussPeer, redis_server: RedisServer, queue_name: str) -> None:
    queue = keuss.open("redis-oq", redis_options(redis_server)).queue(queue_name)
    queue.drain()
    with pytest.raises(KeussError, match=r"^drain$"):
        queue.pop(1000)


def test_stats_list_the_queues_with_their_options(keuss: KeussPeer, redis_server: RedisServer, queue_name: str) -> None:
    options = {"name": queue_name, "stats": redis_stats(redis_server)}
    factory = keuss.open("redis-oq", redis_options(redis_server), **options)
    factory.queue("a", pollInterval=5)
    factory.queue("b")
    assert sorted(wait_until(factory.list)) == ["a", "b"]
    assert factory.list(full=True)["a"]["opts"] == {"pollInterval": 5}
    assert factory.queue("a").status()["type"] == "redis:oq"


def test_a_killed_keuss_fails_its_calls(start_keuss: Callable[[], KeussPeer], redis_server: RedisServer) -> None:
    peer = start_keuss()
    waiting = peer.open("redis-oq", redis_options(redis_server)).queue("killed").begin_pop()
    peer.kill_hard()
    with pytest.raises(KeussError, match="ended with -9"):
        waiting.result(10)


@on([(NEW, "redis-list")])
def test_stored_in_a_list(kind: Kind, queue_name: str, raw: Any) -> None:
    queue = kind.open().queue(queue_name)
    assert queue.push({"a": 1, "arr": []}, tries=3, hdrs={"h": 1}) == 1
    queue.push(b"\x00\xff\x01")
    assert raw.lrange(f"keuss:q:list:{queue_name}", 0, -1) == [
        '{"payload":"AP8B","tries":0,"hdrs":{},"type":"buffer"}',
        '{"payload":{"a":1,"arr":[]},"tries":3,"hdrs":{"h":1}}',
    ]


@on([(OLD, "redis-list")])
def test_stored_in_a_list_by_the_older(kind: Kind, queue_name: str, raw: Any) -> None:
    kind.open().queue(queue_name).push({"a": 1}, tries=3)
    assert raw.lrange(f"keuss:q:list:{queue_name}", 0, -1) == ['{"payload":{"a":1},"tries":3}']


def index_and_hash(raw: Any, queue_name: str) -> tuple[dict[str, float], dict[str, str]]:
    index = dict(raw.zrange(f"keuss:q:ordered_queue:index:{queue_name}", 0, -1, withscores=True))
    return index, raw.hgetall(f"keuss:q:ordered_queue:hash:{queue_name}")


@on([(NEW, "redis-oq")])
def test_stored_in_an_ordered_queue(kind: Kind, queue_name: str, raw: Any) -> None:
    job_id = kind.open().queue(queue_name).push({"a": 1}, mature=FAR_S + 0.5, tries=2, hdrs={"h": True})
    assert re.fullmatch(UUID, job_id)
    index, elements = index_and_hash(raw, queue_name)
    assert index == {job_id: 2_000_000_000_500}
    text = '{"_id":"%s","payload":{"a":1},"tries":2,"hdrs":{"h":true},"mature":2000000000500}'
    assert elements == {job_id: text % job_id}


@on([(OLD, "redis-oq")])
def test_stored_in_an_ordered_queue_by_the_older(kind: Kind, queue_name: str, raw: Any) -> None:
    assert kind.open().queue(queue_name).push({"a": 1}, mature=FAR_S) == 1
    index, elements = index_and_hash(raw, queue_name)
    ((job_id, text),) = elements.items()
    assert index == {job_id: FAR_S * 1000}
    assert json.loads(text) == {"_id": job_id, "payload": {"a": 1}, "tries": 0, "mature": FAR_S * 1000}


@on([(NEW, "redis-oq"), (OLD, "redis-oq")])
def test_a_reservation_moves_the_score_and_sets_a_flag(kind: Kind, queue_name: str, raw: Any) -> None:
    queue = kind.open(reserve_delay=30).queue(queue_name)
    queue.push("x")
    (before,) = index_and_hash(raw, queue_name)[0].values()
    element = queue.reserve(5000)
    index, elements = index_and_hash(raw, queue_name)
    assert index[element.id] == before + 30_000
    assert json.loads(elements[element.id])["reserved"] is True
    queue.ko(element, FAR_S * 1000)
    index, elements = index_and_hash(raw, queue_name)
    stored = json.loads(elements[element.id])
    assert (index[element.id], stored["reserved"], stored["tries"]) == (FAR_S * 1000, False, 1)


def test_stored_in_postgres(keuss: KeussPeer, postgres_server: PostgresServer, postgres_database: str) -> None:
    database = postgres_database.rpartition("/")[2]
    factory = keuss.open("postgres", postgres_options(postgres_server, database), reserve_delay=30)
    queue = factory.queue("Mail-Box")
    ids = [queue.push({"a": 1}, mature=FAR_S, tries=2, hdrs={"h": 1}), queue.push(b"\x00\xff\x01")]
    element = queue.reserve(5000)
    assert element.id == ids[1]
    rows = need_module("psycopg.rows")
    with postgres_server.connect(database, row_factory=rows.tuple_row) as connection:
        select = "_id, _pl, tries, reserved IS NULL, round(extract(epoch FROM mature - now()) / 10)"
        stored = connection.execute(f'SELECT {select} FROM "_k_tbl_Mail-Box" ORDER BY mature').fetchall()
        indexes = connection.execute("SELECT indexname FROM pg_indexes WHERE tablename = '_k_tbl_Mail-Box'").fetchall()
    assert stored[0] == (ids[1], {"hdrs": {}, "type": "buffer", "payload": "AP8B"}, 1, False, 3)
    assert stored[1][:4] == (ids[0], {"hdrs": {"h": 1}, "payload": {"a": 1}}, 2, True)
    assert sorted(indexes) == [("_k_tbl_Mail-Box_pkey",), ('idx_"_k_tbl_Mail-Box"_mature',)]
    factory.close()
