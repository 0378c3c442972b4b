"""The store of directories beside a member of the queue's group who replaces directories and files by others."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path

import pytest

from penstock import Push, fsq
from penstock.errors import StoreError
from penstock.fsq import constants
from penstock.job import JobState
from penstock.queues import blocking
from tests.fsq.other_user import GROUP, MEMBER, Victim, as_member, hard_link, let_in, needs_root, replace_by_link

pytestmark = needs_root

NAME = "_20200101000000_0_1_web_0_x"


@pytest.fixture(autouse=True)
def root(tmp_path: Path) -> Iterator[Path]:
    directory = tmp_path / "root"
    directory.mkdir()
    let_in(directory)
    with constants.using(FSQ_ROOT=str(directory), FSQ_SYNC=0, FSQ_QUEUE_GROUP=GROUP, FSQ_ITEM_GROUP=GROUP):
        yield directory


@pytest.fixture
def queue(root: Path) -> Iterator[blocking.Queue]:
    """A queue of root's whose group may write, with one job."""
    with blocking.connect(f"fsq:{root}?sync=0") as store:
        opened = store.queue("mail", lease=1000)
        opened.push("a job")
        yield opened


@pytest.fixture
def victim(tmp_path: Path) -> Victim:
    return Victim(tmp_path / "victim", [NAME, "secret"])


@pytest.mark.parametrize(
    ("place", "call"),
    [
        ("queue", lambda queue: queue.push("x")),
        ("queue", lambda queue: queue.reserve(0)),
        ("queue", lambda queue: queue.pop(0)),
        ("queue", lambda queue: queue.purge()),
        ("queue", lambda queue: list(queue.peek(10))),
        ("tmp", lambda queue: queue.push("x")),
        (".penstock/lease", lambda queue: queue.reserve(0)),
        (".penstock/later", lambda queue: queue.push("x", delay=100)),
        (".penstock/claim", lambda queue: queue.claim("key", 5)),
        (".penstock/unique", lambda queue: queue.push("x", unique="key")),
        (".penstock", lambda queue: queue.reserve(0)),
    ],
)
def test_a_directory_that_was_replaced_by_a_link_is_refused(
    root: Path, queue: blocking.Queue, victim: Victim, place: str, call: Callable[[blocking.Queue], object]
) -> None:
    replace_by_link(root / "mail" / place, victim.path)
    with pytest.raises(StoreError, match="must be a directory, got a link"):
        call(queue)
    victim.check()


@pytest.mark.parametrize("kind", ["link", "fifo"])
def test_something_that_is_no_job_is_passed_over(root: Path, queue: blocking.Queue, victim: Victim, kind: str) -> None:
    odd = root / "mail/queue" / NAME
    as_member(lambda: odd.symlink_to(victim.path / "secret") if kind == "link" else os.mkfifo(odd))
    assert [job.payload for job in queue.peek(10)] == ["a job"]
    job = queue.reserve(0)
    assert job is not None
    assert job.payload == "a job"
    assert queue.reserve(0) is None
    job.ack()
    victim.check()


def test_the_note_of_a_lease_that_ran_out_is_written_to_no_other_file(
    root: Path, queue: blocking.Queue, victim: Victim
) -> None:
    job = queue.reserve(0)
    assert job is not None
    (lease,) = (root / "mail/.penstock/lease").iterdir()

    def attack() -> None:
        (root / "mail/.penstock/back").mkdir(exist_ok=True)
        (root / "mail/.penstock/back" / job.id).symlink_to(victim.path / "secret")
        lease.rename(lease.with_name(f"{int(time.time() * 1000) - 1000}.{'a' * 16}"))

    as_member(attack)
    again = queue.reserve(0)
    assert again is not None
    assert (again.id, again.tries) == (job.id, 1)
    victim.check()


def test_no_file_is_made_through_a_link_in_place_of_the_news(root: Path, queue: blocking.Queue, victim: Victim) -> None:
    as_member(lambda: (root / "mail/.penstock/later/.news").symlink_to(victim.path / "made"))
    queue.push("later", delay=100)
    assert queue.sizes().scheduled == 1
    victim.check()


@pytest.mark.parametrize("lock", ["unique.lock", "claim.lock"])
def test_a_lock_that_is_the_file_of_somebody_else_is_refused(
    root: Path, queue: blocking.Queue, victim: Victim, lock: str
) -> None:
    (root / "mail/.penstock" / lock).unlink(missing_ok=True)
    hard_link(victim.path / "secret", root / "mail/.penstock" / lock)
    calls: dict[str, Callable[[], object]] = {
        "unique.lock": lambda: queue.push("x", unique="key"),
        "claim.lock": lambda: queue.claim("key", 5),
    }
    with pytest.raises(StoreError, match="must be a file with one name"):
        calls[lock]()
    (root / "mail/.penstock" / lock).unlink()
    victim.check()


def test_a_key_that_names_a_path_is_not_followed(root: Path, queue: blocking.Queue, victim: Victim) -> None:
    (job_id,) = queue.push_many([Push("x", unique="key")])
    digest = sha256(job_id.encode()).hexdigest()[:32]
    as_member(lambda: _replace(root / "mail/.penstock/unique/job" / digest, "../../../../../victim/secret"))
    assert queue.remove(job_id)
    victim.check()


@pytest.mark.parametrize("kind", ["link", "fifo"])
def test_a_value_that_is_something_else_is_refused(
    root: Path, queue: blocking.Queue, victim: Victim, kind: str
) -> None:
    queue.store.put_value("key", "text", ttl=1000)
    path = root / ".penstock-values/key"
    path.unlink()
    path.symlink_to(victim.path / "secret") if kind == "link" else os.mkfifo(path)
    with pytest.raises(StoreError, match="must be a regular file"):
        queue.store.value("key")
    queue.store.put_value("key", "again", ttl=1000)
    assert queue.store.value("key") == "again"
    victim.check()


def test_the_directory_of_values_is_no_link_of_a_member(root: Path, queue: blocking.Queue, victim: Victim) -> None:
    path = root / ".penstock-values"
    path.symlink_to(victim.path)
    os.chown(path, MEMBER, -1, follow_symlinks=False)
    for call in (lambda: queue.store.put_value("key", "text", ttl=1000), lambda: queue.store.value("secret")):
        with pytest.raises(StoreError, match="must be a directory, or a link of root"):
            call()
    victim.check()


def test_nothing_but_values_is_removed_when_their_time_is_over(
    root: Path, queue: blocking.Queue, victim: Victim, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.queues.stores.fsq.driver.VALUES_SWEEP", 1)
    (root / ".penstock-values").symlink_to(victim.path)  # a link of the administrator's is followed
    queue.store.put_value("old", "text", ttl=0)
    queue.store.put_value("key", "text", ttl=1000)
    assert not (victim.path / "old").exists()
    (victim.path / "key").unlink()
    victim.check()


def _replace(path: Path, text: str) -> None:
    path.unlink()
    path.write_text(text)


def test_users_of_one_group_share_a_queue(root: Path, queue: blocking.Queue) -> None:
    def work() -> None:
        with blocking.connect(f"fsq:{root}?sync=0") as store:
            theirs = store.queue("mail")
            theirs.push("of a member", delay=1000)
            job = theirs.reserve(0)
            assert job is not None
            job.nack()

    for entry in (root / "mail/queue").iterdir():
        entry.chmod(0o660)
    as_member(work)
    assert {job.payload for job in queue.peek(10, state=JobState.READY)} == {"a job"}
    job = queue.reserve(0)
    assert job is not None
    job.ack()
    assert fsq.queues() == ("mail",)
    assert MEMBER in {path.stat().st_uid for path in (root / "mail/.penstock").rglob("*")}
