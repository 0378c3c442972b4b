"""What is the store of old buckets' own: nothing but payloads, and buckets that are taken piece by piece."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from penstock import Capability, Push
from penstock.errors import Unsupported
from penstock.queues import blocking
from penstock.queues.blocking import Store
from tests.servers import MongoServer
from tests.stores.harness import PATIENCE

pytestmark = pytest.mark.system


@pytest.fixture
def url(mongo_database: str) -> str:
    """The URL of an empty database, in this layout."""
    return mongo_database.replace("mongodb:", "mongodb+bucket-plain:", 1)


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with blocking.connect(url) as store:
        yield store


def _buckets(store: Store, server: MongoServer) -> list[dict[str, Any]]:
    with server.client() as client:
        return list(client[store._driver._link.database_name]["mail"].find().sort("_id"))


def test_a_bucket_is_taken_piece_by_piece_and_goes_with_its_last_job(store: Store, mongo_server: MongoServer) -> None:
    queue = store.queue("mail")
    ids = queue.push_many(["a", {"b": 1}, 0, "", [1], None, b"\xff"])
    (bucket,) = _buckets(store, mongo_server)
    assert ids == [f"{bucket['_id']}--{number}" for number in range(1, 8)]
    assert (sorted(bucket), bucket["n"]) == (["_id", "b", "mature", "n"], 7)
    assert queue.pop(timeout=PATIENCE).payload == "a"
    (bucket,) = _buckets(store, mongo_server)
    assert (bucket["n"], bucket["b"][0]) == (6, {"b": 1})
    assert [job.payload for job in queue.pop_many(10, timeout=PATIENCE)] == [{"b": 1}, 0, "", [1], None, b"\xff"]
    assert _buckets(store, mongo_server) == []


def test_what_a_pop_had_for_a_caller_that_is_gone_is_first_again(store: Store) -> None:
    queue = store.queue("mail")
    queue.push_many(["a", "b", "c"])
    queue.push_many(["d"])
    for count in (2, 3, 4):
        store._driver.put_back("mail", store._driver.pop("mail", count))
        assert [job.payload for job in queue.peek()] == ["a", "b", "c", "d"]
    assert queue.purge() == 4


def test_buffered_pushes_are_stored_by_drain_and_close(url: str, store: Store, mongo_server: MongoServer) -> None:
    for end in ("drain", "close"):
        with blocking.connect(f"{url}?buffered=yes&bucket_wait=60") as producer:
            producer.queue("mail").push(end)
            assert store.queue("mail").size() == 0
            if end == "drain":
                producer.queue("mail").drain()
                assert store.queue("mail").size() == 1
        assert store.queue("mail").pop(timeout=PATIENCE).payload == end


@pytest.mark.parametrize(
    ("push", "capability"),
    [
        (Push(1, delay=5), Capability.DELAY),
        (Push(1, headers={"a": 1}), Capability.HEADERS),
        (Push(1, unique="a"), Capability.UNIQUE),
    ],
)
def test_what_an_old_bucket_cannot_hold_is_refused(store: Store, push: Push, capability: Capability) -> None:
    with pytest.raises(Unsupported) as refused:
        store.queue("mail").push_many([push])
    assert refused.value.capability == capability


def test_there_are_no_leases(store: Store) -> None:
    with pytest.raises(Unsupported) as refused:
        store.queue("mail").reserve(timeout=0)
    assert refused.value.capability == Capability.RESERVE
