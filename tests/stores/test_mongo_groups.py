"""What is the stream store's own: several groups of consumers, each of which gets each job once."""

from __future__ import annotations

import threading
from collections import Counter

import pytest

from penstock import Capability
from penstock.errors import CallerError, Unsupported
from penstock.job import JobState
from penstock.queues import blocking
from penstock.queues.blocking import Store
from tests.processes import wait_until
from tests.servers import MongoServer
from tests.stores.harness import PATIENCE

pytestmark = pytest.mark.system


@pytest.fixture
def url(mongo_database: str) -> str:
    """The URL of an empty database, in this layout."""
    return mongo_database.replace("mongodb:", "mongodb+stream:", 1)


def _group(url: str, group: str, groups: str = "bill,mail,stock") -> Store:
    return blocking.connect(f"{url}?groups={groups}&group={group}", lease=1000, dead_letter="2,dead")


def test_each_group_gets_each_job_once_with_several_workers(url: str) -> None:
    count = 60
    taken: dict[str, Counter[int]] = {group: Counter() for group in ("bill", "mail", "stock")}

    def work(group: str) -> None:
        with _group(url, group) as store:
            while taken[group].total() < count:
                job = store.queue("orders").reserve(timeout=0.2)
                if job is not None:
                    taken[group][job.payload] += 1
                    job.ack()
            assert store.queue("orders").reserve(timeout=0) is None

    with _group(url, "bill") as store:
        workers = [threading.Thread(target=work, args=(group,)) for group in taken for _ in range(2)]
        for worker in workers:
            worker.start()
        store.queue("orders").push_many(range(count))
        for worker in workers:
            worker.join(PATIENCE)
    assert taken == {group: Counter(range(count)) for group in taken}


def test_a_group_added_later_gets_what_is_pushed_from_then_on(url: str) -> None:
    with _group(url, "bill", "bill,mail") as store:
        store.queue("orders").push("before")
        with _group(url, "stock", "bill,mail,stock") as later:
            later.queue("orders").push("after")
            assert [job.payload for job in later.queue("orders").pop_many(5, timeout=PATIENCE)] == ["after"]
        assert [job.payload for job in store.queue("orders").pop_many(5, timeout=PATIENCE)] == ["before", "after"]


def test_what_one_group_does_is_its_own_affair(url: str) -> None:
    with _group(url, "bill") as bill, _group(url, "mail") as mail:
        bill.queue("orders").push("order", headers={"h": 1})
        held = bill.queue("orders").reserve(timeout=PATIENCE)
        assert tuple(mail.queue("orders").sizes()) == (1, 1, 0, 0)
        other = mail.queue("orders").reserve(timeout=PATIENCE)
        assert other.id == held.id
        held.nack(delay=50)
        assert tuple(bill.queue("orders").sizes()) == (1, 0, 1, 0)
        other.ack()
        assert mail.queue("orders").total() == 0
        assert bill.queue("orders").total() == 1
        (done,) = mail.queue("orders").peek(state=JobState.DONE)
        assert (done.payload, done.headers) == ("order", {"h": 1})
        assert bill.queue("orders").peek(state=JobState.DONE) == []
        assert bill.queue("orders").purge() == 1


def test_dead_letters_and_their_return_are_of_one_group(url: str) -> None:
    with _group(url, "bill") as bill, _group(url, "mail") as mail:
        bill.queue("orders").push("order")
        mail.queue("orders").pop(timeout=PATIENCE)
        for _ in range(2):
            bill.queue("orders").reserve(timeout=PATIENCE).nack()
        assert [job.payload for job in bill.queue("dead").peek()] == ["order"]
        assert mail.queue("dead").total() == 0
        assert bill.queue("dead").redrive() == 1
        assert mail.queue("orders").total() == 0
        assert bill.queue("orders").pop(timeout=PATIENCE).payload == "order"


def test_counters_are_kept_for_each_group_as_keuss_does(url: str, mongo_server: MongoServer) -> None:
    with _group(url, "bill", "bill,mail") as store, mongo_server.client() as client:
        store.queue("orders").push_many([1, 2])
        store.queue("orders").reserve(timeout=PATIENCE).ack()
        stats = client[f"{store._driver._link.database_name}_stats"]["keuss_stats"]
        wanted = {"bill": {"put": 2, "reserve": 1, "commit": 1}, "mail": {"put": 2}}
        wait_until(lambda: (stats.find_one({}) or {}).get("counters", {}).get("stream") == wanted)
        assert store.queue("orders").stats()["push"] == 2


def test_a_job_that_waits_is_not_removed_before_its_time(url: str, mongo_server: MongoServer) -> None:
    with blocking.connect(f"{url}?ttl=60") as store, mongo_server.client() as client:
        store.queue("orders").push("later", delay=5000)
        document = client[store._driver._link.database_name]["orders"].find_one()
        assert document["t"] == document["mature"]["A"]
        store.shift_clock(5001)
        store.queue("orders").reserve(timeout=PATIENCE).nack(delay=9000)
        document = client[store._driver._link.database_name]["orders"].find_one()
        assert document["t"] == document["mature"]["A"]


def test_what_a_stream_lacks_and_what_its_options_must_be(url: str) -> None:
    with blocking.connect(url) as store, pytest.raises(Unsupported) as refused:
        store.queue("orders").push(1, unique="key")
    assert refused.value.capability == Capability.UNIQUE
    for wrong, words in [
        ("groups=a,,b", "groups must be"),
        ("groups=$a", "groups must be"),
        ("group=a.b", "group must"),
    ]:
        with pytest.raises(CallerError, match=words):
            blocking.connect(f"{url}?{wrong}")
