"""What is MongoDB's own: single servers, transactions of the caller, crashes, authentication, and URLs."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from penstock import Capability
from penstock.cli import queues
from penstock.errors import (
    AuthenticationError,
    BadUrl,
    CallerError,
    ConnectionLost,
    OutcomeUnknown,
    PenstockError,
    StoreError,
    Unsupported,
)
from penstock.queues import aio, blocking
from tests.certificates import Authority
from tests.processes import free_port, need_module, wait_until
from tests.server_fixtures import StartMongo
from tests.servers import MongoServer
from tests.stores.harness import PATIENCE

pytestmark = pytest.mark.system


def test_a_single_server_has_no_transactions_and_loses_no_dead_letter(mongo_standalone: MongoServer) -> None:
    url = mongo_standalone.url(database="single")
    with blocking.connect(url, dead_letter="1,dead") as store:
        assert not {Capability.TRANSACTION, Capability.ATOMIC_MOVE} & store.capabilities
        queue = store.queue("mail")
        queue.push_many(["a", "b", "c"])
        for job in queue.reserve_many(3, timeout=PATIENCE):
            job.nack()
        assert sorted(job.payload for job in store.queue("dead").peek()) == ["a", "b", "c"]
        assert store.queue("dead").redrive() == 3
        assert queue.size() == 3
        with pytest.raises(Unsupported) as refused:
            queue.push("x", connection=object())
        assert refused.value.capability == Capability.TRANSACTION
    with blocking.connect(mongo_standalone.url("mongodb+pl", "single_pl")) as store:
        assert Capability.ATOMIC_MOVE in store.capabilities


def test_a_push_is_part_of_the_callers_transaction(mongo_database: str) -> None:
    client = need_module("pymongo").MongoClient(mongo_database)
    with blocking.connect(mongo_database) as store, client, client.start_session() as session:
        queue = store.queue("mail")
        queue.push("first", unique="first")  # a transaction sees no collection that was made after its beginning
        assert queue.pop(timeout=PATIENCE).payload == "first"
        with session.start_transaction():
            client.get_default_database()["orders"].insert_one({"order": 1}, session=session)
            kept = queue.push("kept", connection=session, unique="key")
            assert queue.size() == 0
        assert queue.push("again", unique="key") == kept
        session.start_transaction()
        queue.push("rolled back", connection=session, unique="other")
        session.abort_transaction()
        assert [job.payload for job in queue.peek()] == ["kept"]
        with pytest.raises(CallerError, match="open transaction"):
            queue.push("without", connection=session)


async def test_a_push_is_part_of_the_transaction_of_an_asynchronous_session(mongo_database: str) -> None:
    async with aio.connect(mongo_database) as store, need_module("pymongo").AsyncMongoClient(mongo_database) as client:
        queue = store.queue("mail")
        await queue.push("first")
        async with client.start_session() as session:
            async with await session.start_transaction():
                await queue.push("kept", connection=session)
                assert await queue.size() == 1
            await session.start_transaction()
            await queue.push("rolled back", connection=session)
            await session.abort_transaction()
            await session.start_transaction()
            with (
                blocking.connect(mongo_database) as other,
                pytest.raises(CallerError, match="must be a ClientSession of pymongo, got AsyncClientSession"),
            ):
                other.queue("mail").push("of the other form", connection=session)
        assert [job.payload for job in await queue.peek()] == ["first", "kept"]


def test_a_transaction_that_collides_is_repeated_by_pymongo(mongo_database: str) -> None:
    client = need_module("pymongo").MongoClient(mongo_database)
    with (
        blocking.connect(mongo_database) as store,
        client,
        client.start_session() as one,
        client.start_session() as two,
    ):
        queue = store.queue("mail")
        queue.push("first", unique="first")
        one.start_transaction()
        pushed = queue.push("one", connection=one, unique="key")
        calls: list[str] = []

        def push(session: Any) -> str:
            if calls:
                one.commit_transaction()
            calls.append("call")
            return str(queue.push("two", connection=session, unique="key"))

        assert two.with_transaction(push) == pushed
        assert len(calls) == 2
        assert [job.payload for job in queue.peek()] == ["first", "one"]


@pytest.mark.parametrize("replica_set", ["rs0", None])
def test_what_was_acknowledged_survives_kill_9(start_mongo: StartMongo, replica_set: str | None) -> None:
    server = start_mongo(replica_set=replica_set)
    pushed: list[str] = []
    acked: set[str] = set()
    ending = ""  # the job whose ack was sent last: it may be done, though nobody heard of it
    with blocking.connect(f"{server.url()}?serverSelectionTimeoutMS=500") as store:
        queue = store.queue("mail")
        queue.push_many(range(200))

        def produce() -> None:
            number = 1000
            try:
                while True:
                    pushed.append(queue.push(number))
                    number += 1
            except PenstockError:
                return

        def consume() -> None:
            nonlocal ending
            try:
                while True:
                    job = queue.reserve(timeout=PATIENCE)  # there is always one while the server is there
                    assert job is not None
                    ending = job.id
                    job.ack()
                    acked.add(job.id)
            except PenstockError:
                return

        threads = [threading.Thread(target=work) for work in (produce, consume)]
        for thread in threads:
            thread.start()
        wait_until(lambda: len(pushed) >= 100 and len(acked) >= 50)
        server.kill_hard()
        for thread in threads:
            thread.join(PATIENCE)
    server.start()
    with blocking.connect(server.url()) as store:
        left = {job.id for job in store.queue("mail").jobs()}
    assert set(pushed) - acked - {ending} <= left
    assert not acked & left


def test_a_primary_that_steps_down_loses_nothing(start_mongo: StartMongo) -> None:
    """While jobs are pushed, reserved and acked."""
    server = start_mongo()
    pushed: list[str] = []
    unknown: list[int] = []
    acked: list[str] = []
    ended = threading.Event()
    with blocking.connect(server.url(), lease=600) as store, server.client() as client:
        queue, worked = store.queue("mail"), store.queue("worked")
        worked.push_many(range(2000))

        def produce() -> None:
            number = 0
            while not ended.is_set():
                number += 1
                try:
                    pushed.append(queue.push(number))
                except OutcomeUnknown:
                    unknown.append(number)
                except PenstockError:
                    continue  # nothing was done

        def consume() -> None:
            while not ended.is_set():
                with suppress(PenstockError):
                    job = worked.reserve(timeout=1)
                    if job is not None:
                        job.ack()
                        acked.append(job.id)

        threads = [threading.Thread(target=work) for work in (produce, consume)]
        for thread in threads:
            thread.start()
        wait_until(lambda: len(pushed) >= 20 and len(acked) >= 20)
        client.admin.command("replSetStepDown", 1, force=True)
        before, acked_before = len(pushed), len(acked)
        wait_until(lambda: len(pushed) >= before + 20 and len(acked) >= acked_before + 20)
        ended.set()
        for thread in threads:
            thread.join(PATIENCE)
        stored = {job.id: job.payload for job in queue.jobs()}
        left = {job.id for job in worked.jobs()}
    assert set(pushed) <= stored.keys()
    assert len(set(stored.values())) == len(stored), "a job was stored twice"
    assert len(stored) <= len(pushed) + len(unknown)
    assert not left & set(acked)
    assert len(set(acked)) == len(acked), "a job was acked twice"
    assert len(left) >= 2000 - len(acked) - 5, "jobs were lost"  # an ack whose answer was lost may have been done


def test_a_server_that_requires_tls(start_mongo: StartMongo, tmp_path: Path) -> None:
    authority = Authority(tmp_path, "authority")
    pair = authority.sign("server")
    both = tmp_path / "server.pem"
    both.write_bytes(pair.cert.read_bytes() + pair.key.read_bytes())
    server = start_mongo(
        False,
        replica_set=None,
        tlsMode="requireTLS",
        tlsCertificateKeyFile=both,
        tlsCAFile=authority.cert,
        tlsAllowConnectionsWithoutCertificates=None,
    )
    url = f"{server.url()}?serverSelectionTimeoutMS=3000"
    # The server may need longer than that to start.
    with blocking.connect(
        f"{server.url()}?serverSelectionTimeoutMS=30000&tls=true&tlsCAFile={authority.cert}"
    ) as store:
        queue = store.queue("mail")
        queue.push("sealed")
        assert queue.pop(timeout=PATIENCE).payload == "sealed"
    with pytest.raises(ConnectionLost, match="tls=true"), blocking.connect(url):
        pass
    stranger = Authority(tmp_path, "stranger")
    with (
        pytest.raises(ConnectionLost, match="certificate"),
        blocking.connect(f"{url}&tls=true&tlsCAFile={stranger.cert}"),
    ):
        pass


def test_a_user_and_a_password(start_mongo: StartMongo) -> None:
    server = start_mongo(replica_set=None)
    with server.client() as client:
        client.admin.command("createUser", "ann", pwd="p@ss", roles=["root"])
    server.stop()
    server.options["auth"] = None
    server.start()
    place = f"{server.host}:{server.port}/shop?authSource=admin"
    with blocking.connect(f"mongodb://ann:p%40ss@{place}") as store:
        store.queue("mail").push(1)
        assert store.queue("mail").pop(timeout=PATIENCE).payload == 1
    with pytest.raises(AuthenticationError) as wrong, blocking.connect(f"mongodb://ann:secret@{place}"):
        pass
    assert "secret" not in str(wrong.value)
    with pytest.raises(PenstockError), blocking.connect(f"mongodb://{server.host}:{server.port}/shop") as store:
        store.queue("mail").push(1)


async def test_a_server_that_is_not_there_is_named() -> None:
    url = f"mongodb://127.0.0.1:{free_port()}/db?serverSelectionTimeoutMS=300"
    with pytest.raises(ConnectionLost, match="can't reach MongoDB"):
        async with aio.connect(url):
            pass


@pytest.mark.parametrize(
    ("url", "error", "words"),
    [
        ("mongodb://h/db?colour=red", CallerError, "has no option 'colour'"),
        ("mongodb://h/db?ttl=5", CallerError, "has no option 'ttl'"),
        ("mongodb+ps://h/db?ttl=0", CallerError, "ttl must be"),
        ("mongodb+pl://h/db?pipeline=a$b", CallerError, "a pipeline name on MongoDB"),
        ("mongodb://h/db?w=0", CallerError, "w must be at least 1"),
        ("mongodb://h/a%20b", BadUrl, "can't be read"),
    ],
)
def test_urls_that_are_refused(url: str, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words.replace("$", r"\$")):
        blocking.connect(url)


def test_another_ttl_than_that_of_the_queue_is_refused(mongo_server: MongoServer) -> None:
    url = mongo_server.url("mongodb+ps", "ttl_test")
    with blocking.connect(f"{url}?ttl=100") as store:
        store.queue("mail").push(1)
    with blocking.connect(f"{url}?ttl=200") as store, pytest.raises(StoreError, match="ttl must be the same"):
        store.queue("mail").push(1)


def test_the_command_line_shows_ended_jobs(mongo_database: str, capsys: pytest.CaptureFixture[str]) -> None:
    url = mongo_database.replace("mongodb:", "mongodb+ps:", 1)
    with blocking.connect(url) as store:
        store.queue("mail").push_many(["a", "b"])
        assert store.queue("mail").pop(timeout=PATIENCE).payload == "a"
    assert queues.run(["peek", url, "mail", "--state", "done"]) == 0
    assert [line.split("\t")[1::3] for line in capsys.readouterr().out.splitlines()] == [["done", '"a"']]


def test_signals_survive_a_dropped_collection(mongo_database: str) -> None:
    client = need_module("pymongo").MongoClient(mongo_database)
    name = client.get_default_database().name
    with blocking.connect(mongo_database, poll=300) as store, client:
        queue = store.queue("mail")
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.append(queue.pop(timeout=PATIENCE)))
        thread.start()
        wait_until(lambda: queue._listener.is_listening)
        client.drop_database(f"{name}_signal")
        queue.push("work")
        thread.join(PATIENCE)
        assert found[0].payload == "work"


def test_queues_of_one_store_begin_to_wait_at_the_same_moment(mongo_database: str) -> None:
    async def all_hear() -> None:
        async with aio.connect(mongo_database, poll=300) as store:
            queues = [store.queue(f"mail{number}") for number in range(4)]
            waits = [asyncio.create_task(queue.pop(timeout=PATIENCE)) for queue in queues]
            for queue in queues:
                await queue.push("work")
            assert [(await wait).payload for wait in waits] == ["work"] * 4

    for _ in range(10):
        asyncio.run(all_hear())


async def test_a_listener_that_takes_no_cancellation_is_cancelled_again() -> None:
    """As pymongo's does now and then, while it connects."""
    signal = aio.connect("mongodb://h/db")._driver._signal

    async def listen() -> None:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(10 * PATIENCE)
        await asyncio.sleep(10 * PATIENCE)

    signal._tail = asyncio.create_task(listen())
    await asyncio.sleep(0)
    async with asyncio.timeout(PATIENCE):
        await signal.close()


async def test_two_that_begin_to_listen_at_the_same_time_share_a_cursor(mongo_database: str) -> None:
    async with aio.connect(mongo_database) as store:
        signal = store._driver._signal
        first = asyncio.create_task(signal.subscribe("one", lambda text: None))
        await asyncio.sleep(0)
        tail = signal._tail
        await signal.subscribe("two", lambda text: None)
        await first
        assert signal._tail is tail
