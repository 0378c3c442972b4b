"""The journal on a disk that loses what it may lose: what was promised holds, and a broken journal is found out."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from random import Random

import pytest

from penstock.broker.broker import Broker
from penstock.broker.checksums import Checksums
from penstock.broker.core.jobs import DELIVERED
from penstock.broker.journal import Journal, Rewrite
from penstock.broker.persistence import Persistence
from penstock.errors import JournalError
from penstock.sim.disk import SimDisk, SimFile
from tests.sim.histories import AOF, KEEPS, POLICIES, WALL_START_S, History, ScriptedHistory, SimDesk

LONG = os.environ.get("PENSTOCK_LONG") == "1"
SEEDS = 4000 if LONG else 240
BLOCK = 40  # seeds in one test, so that several processes can share them
PLANT_SEEDS = 400  # histories after which a planted defect must have been found

# A rewrite in steps, with something of everything before, between and after them.
REWRITE = """
    add add_many add add lease claim get nack pause settle
    rewrite add rewrite_step get rewrite_step ack add_many rewrite_step lease rewrite_step claim rewrite_step
    nack rewrite_step add rewrite_step rewrite_step get rewrite_step rewrite_step rewrite_step rewrite_step add ack get
"""


@pytest.fixture(autouse=True)
def many_small_steps(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rewrites go in many steps though there are few jobs; what nodes say about crashes that were meant isn't shown."""
    monkeypatch.setattr("penstock.broker.journal.REWRITE_JOBS", 2)
    caplog.set_level("CRITICAL", "penstock")


def first_violation(seeds: range) -> str:
    for seed in seeds:
        violations = History(seed, POLICIES[seed % len(POLICIES)]).run()
        if violations:
            return f"seed {seed}: {violations[0]}"
    return ""


@pytest.mark.slow
@pytest.mark.parametrize("block", range(SEEDS // BLOCK))
def test_what_was_promised_holds_in_random_histories(block: int) -> None:
    violation = first_violation(range(block * BLOCK, (block + 1) * BLOCK))
    assert not violation, violation


@pytest.mark.slow
@pytest.mark.parametrize("end", ["kill", "power"])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_rewrite_can_be_cut_off_at_every_operation(policy: str, end: str) -> None:
    whole = ScriptedHistory(REWRITE, policy, 10_000, end)
    assert not whole.run(), whole.violations[0]
    assert whole.operations > 20
    for cut_at in range(whole.operations):
        for seed in range(3 if end == "power" else 1):
            history = ScriptedHistory(REWRITE, policy, cut_at, end, seed)
            assert not history.run(), f"cut at {cut_at}: {history.violations[0]}"


def test_the_rewrite_of_that_test_replaces_all_files_and_has_changes_to_follow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replaced, followed = [], []
    replace, follow = SimDisk.replace, Rewrite.follow
    monkeypatch.setattr(SimDisk, "replace", lambda disk, name, by: (replaced.append(name), replace(disk, name, by)))
    monkeypatch.setattr(Rewrite, "follow", lambda new, *data: (followed.append(any(data)), follow(new, *data)))
    assert not ScriptedHistory(REWRITE, "always", 10_000, "kill").run()
    assert replaced == [AOF, AOF + ".state", AOF + ".sum"]
    assert sum(followed) >= 4


# Defects planted on purpose. Each must be found by the very histories that are clean without it.


def skip_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SimFile, "sync", lambda file: None)


def skip_background_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SimFile, "begin_sync", lambda file: None)


def reply_before_the_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    flush = Broker.flush

    def early(broker: Broker) -> None:
        for client in broker.dirty:
            client.sink.write(b"".join(client.out))
            client.out.clear()
        flush(broker)

    monkeypatch.setattr(Broker, "flush", early)


def forget_only_deliveries(monkeypatch: pytest.MonkeyPatch) -> None:
    removed = Journal.removed

    def forgetful(journal: Journal, job_id: bytes) -> None:
        job = journal.node.jobs.get(job_id)
        if job is None or not job.flags & DELIVERED:
            removed(journal, job_id)

    monkeypatch.setattr(Journal, "removed", forgetful)


def forget_acks(monkeypatch: pytest.MonkeyPatch) -> None:
    removed = Journal.removed

    def forgetful(journal: Journal, job_id: bytes) -> None:
        if journal.node.jobs.get(job_id) is not None:
            removed(journal, job_id)

    monkeypatch.setattr(Journal, "removed", forgetful)


def forget_where_jobs_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Journal, "changed", lambda journal, job: None)


def forget_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Journal, "paused", lambda journal, name, pause: None)


def drop_what_changes_during_a_rewrite(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Rewrite, "follow", lambda rewrite, jobs, states: None)


def replace_without_a_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    def finish(rewrite: Rewrite) -> None:
        for name in rewrite.names:
            rewrite.disk.replace(name, by="temp-rewrite-" + name)

    monkeypatch.setattr(Rewrite, "finish", finish)
    monkeypatch.setattr(SimFile, "begin_sync", lambda file: None)


def claim_that_everything_is_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(journal: Journal) -> None:
        journal._mark(b"START", journal.disk.boot_id(), b"always")

    monkeypatch.setattr(Journal, "start", start)


def leave_the_start_unsynced(monkeypatch: pytest.MonkeyPatch) -> None:
    def mark(journal: Journal, *words: bytes) -> None:
        journal._states.append(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(w), w) for w in words))

    monkeypatch.setattr(Journal, "_mark", mark)


def forget_what_was_withheld(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Persistence, "_save_loaded", lambda persistence, journal: None)


def believe_any_boot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SimDisk, "boot_id", lambda disk: b"the same")


def record_checksums_before_the_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    add = Checksums.add

    def hasty(sums: Checksums, which: int, data: bytes) -> None:
        add(sums, which, data)
        sums.cut()
        sums.commit()
        sums.sync()

    monkeypatch.setattr(Checksums, "add", hasty)


def keep_old_checksums_during_a_rewrite(monkeypatch: pytest.MonkeyPatch) -> None:
    remove = SimDisk.remove
    monkeypatch.setattr(SimDisk, "remove", lambda disk, name: None if name == AOF + ".sum" else remove(disk, name))


PLANTS = [
    skip_sync,
    skip_background_sync,
    reply_before_the_flush,
    forget_only_deliveries,
    forget_acks,
    forget_where_jobs_are,
    forget_pauses,
    drop_what_changes_during_a_rewrite,
    replace_without_a_sync,
    claim_that_everything_is_synced,
    leave_the_start_unsynced,
    forget_what_was_withheld,
    believe_any_boot,
]


@pytest.mark.slow
@pytest.mark.parametrize("plant", PLANTS)
def test_a_planted_defect_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    assert first_violation(range(PLANT_SEEDS))


def test_checksums_of_what_is_not_synced_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    record_checksums_before_the_sync(monkeypatch)
    with pytest.raises(JournalError, match="bytes that were on the disk are missing"):
        first_violation(range(BLOCK))


def test_checksums_of_other_files_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    keep_old_checksums_during_a_rewrite(monkeypatch)
    whole = ScriptedHistory(REWRITE, "always", 10_000, "kill")
    assert not whole.run()
    cuts = iter(range(whole.operations))
    with pytest.raises(JournalError, match=r"missing|doesn't match"):
        any(ScriptedHistory(REWRITE, "always", cut_at, "kill").run() for cut_at in cuts)


# Single behaviours.


@pytest.fixture
def server() -> SimDesk:
    return SimDesk(SimDisk(), WALL_START_S, 0, appendfsync="always").start()


def again(server: SimDesk, disk: SimDisk, **directives: object) -> SimDesk:
    """The same node, started on what is left of its disk."""
    directives.setdefault("appendfsync", server.broker.config.appendfsync)
    return SimDesk(disk, server.wall_s, 1, **directives).start()


def test_a_failed_sync_stops_writes_and_says_so(server: SimDesk) -> None:
    client, other = server.client(), server.client()
    first = client.call("ADDJOB", "q", "safe", 0)
    server.disk.fail_syncs(errno.EIO)
    assert other.raw("ADDJOB", "q", "unsafe", 0) == b""
    assert other.closed == "now"
    refused = client.raw("ADDJOB", "q", "refused", 0)
    assert refused.startswith(b"-MISCONF Errors writing to the AOF file:")
    server.disk.heal()
    server.advance(5)
    assert client.raw("ADDJOB", "q", "still refused", 0).startswith(b"-MISCONF")
    left = again(server, server.disk.crash(Random(1), "none"))
    assert left.client().call("QPEEK", "q", 9) == [[b"q", first, b"safe"]]


def test_a_rewrite_heals_a_failed_sync(server: SimDesk) -> None:
    client = server.client()
    client.call("ADDJOB", "q", "safe", 0)
    server.disk.fail_syncs(errno.EIO)
    server.client().raw("ADDJOB", "q", "unsafe", 0)
    server.disk.heal()
    client.call("BGREWRITEAOF")
    server.finish_rewrite()
    last = client.call("ADDJOB", "q", "again", 0)
    left = again(server, server.disk.crash(Random(1), "none"))
    assert last in [job_id for _, job_id, _ in left.client().call("QPEEK", "q", 9)]


def test_a_failed_background_sync_stops_writes(server: SimDesk) -> None:
    client = server.client()
    client.call("CONFIG", "SET", "appendfsync", "everysec")
    server.disk.fail_syncs(errno.EIO)
    client.call("ADDJOB", "q", "answered", 0)
    server.advance(2.5)
    assert client.raw("ADDJOB", "q", "x", 0).startswith(b"-MISCONF")


def test_a_full_disk_refuses_writes_until_there_is_room(server: SimDesk) -> None:
    client = server.client()
    ids = [client.call("ADDJOB", "q", f"job {n}", 0) for n in range(5)]
    server.disk.fail_writes(errno.ENOSPC, after_bytes=100)
    assert server.client().raw("ADDJOB", "q", "x" * 200, 0) == b""
    assert client.raw("ADDJOB", "q", "y", 0).startswith(b"-MISCONF")
    server.disk.heal()
    server.advance(1.2)
    ids.append(client.call("ADDJOB", "q", "room again", 0))
    left = again(server, server.disk.crash(Random(1), "none"))
    peeked = [job_id for _, job_id, _ in left.client().call("QPEEK", "q", 99)]
    assert [job_id for job_id in peeked if job_id in ids] == ids


def test_a_crash_on_a_full_disk_leaves_what_was_answered(server: SimDesk) -> None:
    client = server.client()
    ids = [client.call("ADDJOB", "q", f"job {n}", 0) for n in range(5)]
    for room in range(0, 250, 7):
        disk = server.disk.process_crash()
        life = again(server, disk)
        disk.fail_writes(errno.ENOSPC, room)
        life.client().raw("ADDJOB", "q", "x" * 200, 0)
        left = again(life, disk.process_crash())
        assert [job_id for _, job_id, _ in left.client().call("QPEEK", "q", 5)] == ids


def test_an_only_delivery_does_not_leave_while_the_disk_is_full(server: SimDesk) -> None:
    producer, waiting = server.client(), server.client()
    producer.call("ADDJOB", "q", "once", 0, "RETRY", 0, "DELAY", 3)
    waiting.send(["GETJOB", "FROM", "q"])
    server.disk.fail_writes(errno.ENOSPC)
    server.client().raw("ADDJOB", "q", "x", 0)
    server.advance(4)
    assert waiting.pushed() == []
    assert waiting.closed == "now"


def test_shutdown_on_a_full_disk_fails_and_writes_stay_refused(server: SimDesk) -> None:
    client = server.client()
    client.call("ADDJOB", "q", "x", 0)
    server.disk.fail_writes(errno.ENOSPC)
    for words in (["SHUTDOWN"], ["SHUTDOWN", "REWRITE-AOF"]):
        assert client.raw(*words) == b"-ERR Errors trying to SHUTDOWN. Check logs.\r\n"
    assert client.raw("ADDJOB", "q", "y", 0).startswith(b"-MISCONF")
    server.disk.heal()
    server.advance(1.2)
    assert client.call("ADDJOB", "q", "z", 0).startswith(b"D-")


def test_nothing_is_promised_between_the_end_of_the_journal_and_that_of_the_process(server: SimDesk) -> None:
    client, waiting = server.client(), server.client()
    client.call("ADDJOB", "q", "once", 0, "RETRY", 0, "DELAY", 3)
    waiting.send(["GETJOB", "FROM", "q"])
    assert server.broker.persistence.close(rewrite=False)
    assert client.raw("ADDJOB", "q", "late", 0).startswith(b"-MISCONF")
    server.advance(4)
    assert waiting.pushed() == []


def test_a_rename_that_fails_stops_writes(server: SimDesk, monkeypatch: pytest.MonkeyPatch) -> None:
    client = server.client()
    client.call("ADDJOB", "q", "safe", 0)
    replace = SimDisk.replace

    def fail_second(disk: SimDisk, name: str, by: str) -> None:
        if name.endswith(".state"):
            raise OSError(errno.EIO, "no")
        replace(disk, name, by)

    monkeypatch.setattr(SimDisk, "replace", fail_second)
    client.call("BGREWRITEAOF")
    server.finish_rewrite()
    assert client.raw("ADDJOB", "q", "into nowhere", 0).startswith(b"-MISCONF")


def test_a_claim_returns_the_same_jobs_in_the_same_order_after_a_rewrite_and_a_kill(server: SimDesk) -> None:
    client = server.client()
    for number in range(40):
        client.call("ADDJOB", f"q{number % 2}", f"job {number}", 0)
    claimed = client.call("CLAIM", "batch", "COUNT", 30, "FROM", "q1", "q0")
    client.call("BGREWRITEAOF")
    server.finish_rewrite()
    left = again(server, server.disk.process_crash())
    assert left.client().call("CLAIM", "batch", "COUNT", 30, "FROM", "q1", "q0") == claimed
    assert left.client().call("ACKCLAIM", "batch") == 30


def test_a_lease_holds_over_a_restart_and_ends_in_its_time(server: SimDesk) -> None:
    client = server.client()
    client.call("ADDJOB", "q", "x", 0)
    ((_, job_id, _, token),) = client.call("GETJOB", "LEASE", 10_000, "FROM", "q")
    left = again(server, server.disk.process_crash())
    client = left.client()
    assert client.call("EXTEND", 10_000, job_id, token) == [b"OK"]
    left.advance(9)
    assert client.call("GETJOB", "NOHANG", "FROM", "q") is None
    left.advance(2)
    assert client.call("ACKLEASE", job_id, token) == [b"STALE"]
    assert client.call("GETJOB", "NOHANG", "FROM", "q") == [[b"q", job_id, b"x"]]


def test_a_journal_loaded_again_during_a_rewrite_is_whole(server: SimDesk) -> None:
    client = server.client()
    ids = [client.call("ADDJOB", "q", f"job {n}", 0) for n in range(20)]
    client.call("BGREWRITEAOF")
    server.broker.persistence.step()
    assert client.call("DEBUG", "LOADAOF") == b"OK"
    server.finish_rewrite()
    server.advance(0.3)
    server.finish_rewrite()
    left = again(server, server.disk.process_crash())
    assert [job_id for _, job_id, _ in left.client().call("QPEEK", "q", 99)] == ids


@pytest.mark.parametrize("turned_off", [True, False])
def test_an_only_delivery_made_without_a_journal_is_not_made_again(server: SimDesk, turned_off: bool) -> None:
    client = server.client()
    if turned_off:
        client.call("ADDJOB", "q", "once", 0, "RETRY", 0)
        client.call("CONFIG", "SET", "appendonly", "no")
    else:  # a file of one moment
        client.call("CONFIG", "SET", "appendonly", "no")
        client.call("ADDJOB", "q", "once", 0, "RETRY", 0)
        client.call("BGREWRITEAOF")
        server.finish_rewrite()
    assert client.call("GETJOB", "NOHANG", "FROM", "q")
    left = again(server, server.disk.process_crash())
    assert left.client().call("GETJOB", "NOHANG", "FROM", "q") is None


def test_a_job_queued_by_hand_waits_in_its_queue_after_a_restart(server: SimDesk) -> None:
    client = server.client()
    job_id = client.call("ADDJOB", "q", "x", 0)
    assert client.call("DEQUEUE", job_id) == client.call("ENQUEUE", job_id) == 1
    left = again(server, server.disk.process_crash())
    assert left.client().call("GETJOB", "NOHANG", "FROM", "q") == [[b"q", job_id, b"x"]]


def test_a_delivery_before_its_time_is_the_only_one_after_a_power_loss() -> None:
    server = SimDesk(SimDisk(), WALL_START_S, 0, appendfsync="no").start()
    client = server.client()
    job_id = client.call("ADDJOB", "q", "once", 0, "RETRY", 0, "DELAY", 60)
    assert client.call("ENQUEUE", job_id) == 1
    assert client.call("GETJOB", "NOHANG", "FROM", "q")
    left = again(server, server.disk.crash(Random(1), "none"))
    left.advance(100)
    assert left.client().call("GETJOB", "NOHANG", "FROM", "q") is None


@pytest.mark.parametrize("keep", KEEPS)
def test_a_crash_keeps_what_was_synced(keep: str) -> None:
    disk = SimDisk()
    file = disk.append("f")
    file.write(b"safe ")
    file.sync()
    file.write(b"first ")
    file.write(b"second")
    left = {disk.crash(Random(seed), keep).content("f") for seed in range(60)}
    assert all(data.startswith(b"safe ") for data in left)
    whole = b"safe first second"
    expected = {"none": {b"safe "}, "some": {b"safe ", b"safe first ", whole}, "all": {whole}}
    if keep in expected:
        assert left == expected[keep]
    elif keep == "torn":
        assert left == {whole[:end] for end in range(5, len(whole) + 1)}
    else:
        assert left == {whole[:end].ljust(len(whole), b"\0") for end in range(5, len(whole) + 1)}


def test_a_kill_keeps_everything_and_the_boot_id() -> None:
    disk = SimDisk()
    disk.append("f").write(b"written")
    assert disk.process_crash().content("f") == b"written"
    assert disk.process_crash().boot_id() == disk.boot_id() != disk.crash(Random(1)).boot_id()
    assert disk.process_crash().crash(Random(1)).content("f") == b""


def test_what_a_failed_sync_dropped_is_not_saved_by_a_later_one() -> None:
    disk = SimDisk()
    file = disk.append("f")
    file.write(b"dropped")
    disk.fail_syncs(errno.EIO)
    with pytest.raises(OSError, match="can't sync"):
        file.sync()
    disk.heal()
    file.write(b" saved")
    file.sync()
    assert disk.content("f") == b"dropped saved"
    assert disk.crash(Random(1)).content("f") == bytes(7) + b" saved"


def test_a_full_disk_takes_a_part_and_then_nothing() -> None:
    disk = SimDisk()
    file = disk.append("f")
    disk.fail_writes(errno.ENOSPC, after_bytes=3)
    assert file.write(b"12345") == 3
    with pytest.raises(OSError, match="takes no more"):
        file.write(b"45")
    disk.heal()
    assert file.write(b"45") == 2
    assert disk.content("f") == b"12345"
