"""Node Keuss 2.0.6 and Penstock on one MongoDB, in each layout but buckets: each works on the other's jobs."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest

from penstock.errors import LeaseLost
from penstock.job import JobState
from penstock.queues import blocking
from penstock.queues.blocking import Queue, Store
from penstock.queues.dead_letter import DeadLetter
from tests.interop.keuss_peer import KeussError, KeussFactory, KeussPeer, KeussQueue, mongo_capped, mongo_options
from tests.processes import wait_until
from tests.servers import MongoServer

pytestmark = pytest.mark.interop

PATIENCE = 20.0
PATIENCE_MS = 20_000
BACKENDS = {
    "mongodb": "mongo",
    "mongodb+pl": "pl-mongo",
    "mongodb+ps": "ps-mongo",
    "mongodb+stream": "stream-mongo",
    "mongodb+intraorder": "intraorder",
}
CHANNEL = "signal_collection"
DEAD = {"queue": "dead", "max_ko": 1}  # as Keuss says it: the third failure is the last


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass
class Both:
    """One queue, seen from both sides."""

    scheme: str
    ours: Queue
    theirs: KeussQueue
    store: Store
    factory: KeussFactory
    database: Any

    @property
    def jobs(self) -> Any:
        """Its collection."""
        return self.database["default" if self.scheme == "mongodb+pl" else "mail"]


@pytest.fixture(params=BACKENDS)
def both(request: pytest.FixtureRequest, keuss: KeussPeer, mongo_server: MongoServer) -> Iterator[Both]:
    scheme = request.param
    name = f"interop_{scheme.replace('+', '_')}_{now_ms()}"
    factory = keuss.open(
        BACKENDS[scheme],
        mongo_options(mongo_server, name),
        signaller=mongo_capped(mongo_server, name, CHANNEL),
        reserve_delay=60,
        pollInterval=200,
        deadletter=DEAD,
    )
    options = {"lease": 60, "poll": 0.2, "dead_letter": DeadLetter(max_ko=1, queue="dead"), "channel": CHANNEL}
    with blocking.connect(mongo_server.url(scheme, name), **options) as store, mongo_server.client() as client:
        yield Both(scheme, store.queue("mail"), factory.queue("mail"), store, factory, client[name])
    factory.close()


PAYLOADS: list[Any] = [
    {"a": 1, "list": [1, "zwei", []], "o": {}, "null": None},
    "text",
    "",
    4.5,
    2**40,
    True,
    b"\x00\xff\x01",
]


def test_payloads_and_headers_in_both_directions(both: Both) -> None:
    headers = {"h": 1, "text": "Grüße"}
    for payload in PAYLOADS:
        job_id = both.ours.push(payload, headers=headers)
        element = both.theirs.pop(PATIENCE_MS)
        assert (element.id, element.payload, element.hdrs, element.tries) == (job_id, payload, headers, 0)
        element_id = both.theirs.push(payload, hdrs=headers)
        job = both.ours.pop(timeout=PATIENCE)
        assert (job.id, job.payload, job.headers, job.tries) == (element_id, payload, headers, 0)


def test_documents_and_indexes_are_alike(both: Both, mongo_server: MongoServer) -> None:
    both.ours.push({"a": 1}, headers={"h": 1}, delay=100)
    both.theirs.push({"a": 1}, hdrs={"h": 1}, delay=100)
    ours, theirs = both.jobs.find().sort("_id")
    assert {name: type(value) for name, value in ours.items()} == {name: type(value) for name, value in theirs.items()}
    with (
        mongo_server.client() as client,
        blocking.connect(mongo_server.url(both.scheme, f"{both.database.name}_ours")) as store,
    ):
        store.queue("mail").push(1)
        made = client[f"{both.database.name}_ours"][both.jobs.name].index_information()
    assert made == both.jobs.index_information()


def test_reservations_of_each_are_kept_by_the_other(both: Both) -> None:
    both.ours.push("work")
    job = both.ours.reserve(timeout=PATIENCE)
    assert both.theirs.reserve(300) is None
    assert (both.theirs.size(), both.theirs.resv_size(), both.theirs.total_size()) == (0, 1, 1)
    job.nack()
    element = both.theirs.reserve(PATIENCE_MS)
    assert element.tries == 1
    assert both.ours.reserve(timeout=0) is None
    assert tuple(both.ours.sizes()) == (1, 0, 0, 1)
    with pytest.raises(LeaseLost):
        job.ack()
    assert both.theirs.ko(element, now_ms() - 1) is True
    job = both.ours.reserve(timeout=PATIENCE)
    assert job.tries == 2
    assert both.theirs.ok(job.id) is True  # Keuss asks for no token
    with pytest.raises(LeaseLost):
        job.ack()
    assert both.ours.sizes().total == 0


def test_schedules_and_removals_of_each_are_seen_by_the_other(both: Both) -> None:
    later = now_ms() + 100_000
    removed = both.ours.push("ours", at=later / 1000)
    assert both.theirs.next_t() == later
    if both.scheme == "mongodb+stream":  # Keuss can't
        assert both.theirs.remove(removed) is None
        assert both.ours.remove(removed) == [True]
    else:
        assert both.theirs.remove(removed) is True
    element_id = both.theirs.push("theirs", delay=100)
    (job,) = both.ours.peek(state=JobState.SCHEDULED)
    assert (job.id, both.ours.remove(element_id)) == (element_id, [True])
    assert both.theirs.total_size() == 0


def test_dead_letters_of_each_are_the_others(both: Both) -> None:
    both.ours.push("ours", headers={"h": 1})
    for _ in range(3):
        both.theirs.ko(both.theirs.reserve(PATIENCE_MS), now_ms() - 1)
    dead = both.store.queue("dead")
    (letter,) = wait_until(dead.peek)
    assert (letter.payload, letter.headers["x-dl-from-queue"], letter.headers["h"]) == ("ours", "mail", 1)
    assert dead.redrive() == 1
    assert both.theirs.pop(PATIENCE_MS).payload == "ours"
    both.theirs.push("theirs")
    for _ in range(3):
        both.ours.reserve(timeout=PATIENCE).nack()
    element = both.factory.queue("dead").pop(PATIENCE_MS)
    assert (element.payload, element.hdrs["x-dl-from-queue"], element.hdrs["x-dl-tries"]) == ("theirs", "mail", 2)


def test_counters_and_pauses_are_shared(both: Both) -> None:
    both.theirs.push(1)
    both.ours.push(2)
    assert both.ours.pop(timeout=PATIENCE).payload == 1
    both.theirs.ok(both.theirs.reserve(PATIENCE_MS))
    wait_until(lambda: both.theirs.stats().get("commit") == 1)
    counted = {"push": 2, "pop": 1, "reserve": 1, "ack": 1}
    wait_until(lambda: counted.items() <= both.ours.stats().items())
    both.theirs.pause()
    wait_until(both.ours.paused)
    both.ours.push(3)
    assert both.ours.pop(timeout=0.3) is None
    both.theirs.pause(False)
    assert both.ours.pop(timeout=PATIENCE).payload == 3


def test_signals_of_each_wake_the_other(keuss: KeussPeer, mongo_server: MongoServer) -> None:
    name = f"interop_signals_{now_ms()}"
    signaller = mongo_capped(mongo_server, name, CHANNEL)
    factory = keuss.open("mongo", mongo_options(mongo_server, name), signaller=signaller, pollInterval=600_000)
    theirs = factory.queue("mail")
    theirs.push("first")  # by its answer, Keuss listens
    assert theirs.pop(PATIENCE_MS).payload == "first"
    with blocking.connect(mongo_server.url(database=name), channel=CHANNEL, poll=600) as store:
        ours = store.queue("mail")
        waiting = theirs.begin_pop(PATIENCE_MS)
        wait_until(lambda: theirs.consumers() == 1)

        def push_again() -> bool:
            # Keuss hears nothing whose id is smaller than the newest when it began: so for up to a second.
            ours.push("to Keuss")
            return waiting.done()

        wait_until(push_again, every=0.3)
        assert waiting.result(PATIENCE)["payload"] == "to Keuss"
        ours.purge()
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.append(ours.pop(timeout=PATIENCE)))
        thread.start()
        wait_until(lambda: ours._listener.is_listening)
        theirs.push("to Penstock")
        thread.join(PATIENCE)
        assert found[0].payload == "to Penstock"
    factory.close()


def test_jobs_of_both_go_to_consumers_of_both_at_the_same_time(both: Both) -> None:
    count = 60
    taken: list[Any] = []

    def consume_ours() -> None:
        while len(taken) < 2 * count:
            job = both.ours.reserve(timeout=0.2)
            if job is not None:
                taken.append(job.payload)
                job.ack()

    def consume_theirs() -> None:
        # Without a limit: Keuss may give an element to a wait whose time is over.
        with suppress(KeussError):  # the end of the wait
            while True:
                element = both.theirs.reserve()
                assert element is not None
                taken.append(element.payload)
                assert both.theirs.ok(element) is True

    threads = [threading.Thread(target=work) for work in (consume_ours, consume_theirs)]
    for thread in threads:
        thread.start()
    for number in range(count):
        both.ours.push(f"ours {number}")
        both.theirs.push(f"theirs {number}")
    wait_until(lambda: len(taken) >= 2 * count, 60)
    wait_until(lambda: both.theirs.cancel() or not any(thread.is_alive() for thread in threads), PATIENCE)
    wanted = sorted([f"ours {number}" for number in range(count)] + [f"theirs {number}" for number in range(count)])
    assert sorted(taken) == wanted
    assert both.ours.sizes().total == 0


def test_groups_on_both_sides_get_each_job_once(keuss: KeussPeer, mongo_server: MongoServer) -> None:
    name = f"interop_groups_{now_ms()}"
    signaller = mongo_capped(mongo_server, name, CHANNEL)
    given = {"groups": "bill,mail", "signaller": signaller, "pollInterval": 200}
    factory = keuss.open("stream-mongo", mongo_options(mongo_server, name), group="bill", **given)
    theirs = factory.queue("orders")
    url = f"{mongo_server.url('mongodb+stream', name)}?groups=bill,mail&channel={CHANNEL}"
    with blocking.connect(f"{url}&group=bill", poll=0.2) as bill, blocking.connect(f"{url}&group=mail") as mail:
        theirs.push("theirs")
        bill.queue("orders").push("ours")
        element = theirs.reserve(PATIENCE_MS)
        job = bill.queue("orders").reserve(timeout=PATIENCE)
        assert {element.payload, job.payload} == {"ours", "theirs"}
        assert theirs.ok(element) is True
        job.ack()
        assert theirs.pop(300) is None
        assert [job.payload for job in mail.queue("orders").pop_many(5, timeout=PATIENCE)] == ["theirs", "ours"]
        counters = {"stream.bill.put": 2, "stream.mail.put": 2, "stream.bill.commit": 2, "stream.mail.get": 2}
        stats = mail._services.stats
        wait_until(lambda: counters.items() <= stats.counters("orders").items())
    factory.close()


def test_order_by_key_is_kept_across_both_sides(keuss: KeussPeer, mongo_server: MongoServer) -> None:
    name = f"interop_order_{now_ms()}"
    signaller = mongo_capped(mongo_server, name, CHANNEL)
    factory = keuss.open("intraorder", mongo_options(mongo_server, name), signaller=signaller, pollInterval=200)
    theirs = factory.queue("mail")
    url = f"{mongo_server.url('mongodb+intraorder', name)}?channel={CHANNEL}"
    with blocking.connect(url, poll=0.2, lease=60) as store:
        ours = store.queue("mail")
        for number in range(0, 12, 2):
            for key in ("a", 7):
                theirs.push({"iid": key, "n": number})
                ours.push({"iid": key, "n": number + 1})
        seen: dict[object, list[int]] = {"a": [], 7: []}
        for step in range(24):
            if step % 2:
                element = theirs.reserve(PATIENCE_MS)
                payload = element.payload
                assert theirs.ok(element) is True
            else:
                job = ours.reserve(timeout=PATIENCE)
                payload = job.payload
                if step % 3 == 0:  # given back: it is the next one of its key again
                    job.nack()
                    continue
                job.ack()
            seen[payload["iid"]].append(payload["n"])
        while sum(map(len, seen.values())) < 24:
            job = ours.pop(timeout=PATIENCE)
            seen[job.payload["iid"]].append(job.payload["n"])
        assert seen == {"a": list(range(12)), 7: list(range(12))}
        assert theirs.total_size() == 0
    factory.close()
