"""The checks before a command where memory or the journal fails: which of several troubles a client is told first."""

from __future__ import annotations

import errno

import pytest

from tests.unit.broker.harness import LocalClient, LocalServer

OUT_OF_MEMORY = b"-OOM command not allowed when used memory > 'maxmemory'.\r\n"
NO_AUTH = b"-NOAUTH Authentication required.\r\n"
LOADING = b"-LOADING Disque is loading the dataset in memory\r\n"
MISCONF = b"-MISCONF Errors writing to the AOF file: No space left on device\r\n"


def troubled(*troubles: str) -> LocalClient:
    """Connect a client to a broker in trouble."""
    server = LocalServer(appendonly="journal" in troubles)
    broker = server.broker
    if "journal" in troubles:
        server.disk.failure = OSError(errno.ENOSPC, "No space left on device")
        server.client().send(["ADDJOB", "q", "not written", 0])
    if "memory" in troubles:
        broker.node.memory.limit(1000)
    if "loading" in troubles:
        broker.persistence.loading = True
    if "password" in troubles:
        broker.config.requirepass = b"secret"
    broker.refresh_checks()
    return server.client()


@pytest.mark.parametrize(
    ("troubles", "reply"),
    [
        ("password memory journal loading", NO_AUTH),
        ("memory journal loading", OUT_OF_MEMORY),
        ("journal loading", MISCONF),
        ("loading", LOADING),
    ],
)
def test_the_first_trouble_in_the_order_of_the_checks_is_told(troubles: str, reply: bytes) -> None:
    assert troubled(*troubles.split()).raw("ADDJOB", "q", "body", 0) == reply


@pytest.mark.parametrize(
    ("words", "reply"),
    [
        ("BOGUS", b"-ERR unknown command 'BOGUS'\r\n"),
        ("ADDJOB q", b"-ERR wrong number of arguments for 'addjob' command\r\n"),
        ("QUIT", b"+OK\r\n"),
    ],
)
def test_name_and_arity_are_looked_at_before_any_trouble(words: str, reply: bytes) -> None:
    assert troubled("password", "memory", "journal", "loading").raw(*words.split()) == reply


@pytest.mark.parametrize("words", ["ADDJOB q body 0", "ENQUEUE", "NACK"])
def test_without_memory_commands_that_need_some_are_refused(words: str) -> None:
    assert troubled("memory").raw(*words.split()) == OUT_OF_MEMORY


@pytest.mark.parametrize("words", ["PING", "GETJOB NOHANG FROM q", "ACKJOB", "DELJOB", "DEQUEUE", "QLEN q"])
def test_without_memory_all_others_run(words: str) -> None:
    assert not troubled("memory").raw(*words.split()).startswith(b"-")


@pytest.mark.parametrize("words", ["ADDJOB q body 0", "GETJOB NOHANG FROM q", "ACKJOB", "PING", "PAUSE q all"])
def test_without_a_journal_to_write_to_changes_and_pings_are_refused(words: str) -> None:
    assert troubled("journal").raw(*words.split()) == MISCONF


@pytest.mark.parametrize("words", ["QLEN q", "INFO", "TIME", "QSCAN", "PAUSE q state"])
def test_without_a_journal_to_write_to_looking_goes_on(words: str) -> None:
    assert not troubled("journal").raw(*words.split()).startswith(b"-")


@pytest.mark.parametrize("words", ["QLEN q", "PING", "GETJOB NOHANG FROM q", "HELLO"])
def test_while_loading_most_commands_are_refused(words: str) -> None:
    assert troubled("loading").raw(*words.split()) == LOADING


@pytest.mark.parametrize("words", ["INFO", "COMMAND COUNT"])
def test_while_loading_a_node_still_tells_about_itself(words: str) -> None:
    assert not troubled("loading").raw(*words.split()).startswith(b"-")


def test_jobs_that_nobody_needs_make_room_for_new_ones() -> None:
    server = LocalServer()
    client = server.client()
    for _ in range(200):
        client.call("ADDJOB", "q", b"x" * 1000, 0, "RETRY", 0)
        client.call("GETJOB", "FROM", "q")
    memory = server.broker.node.memory
    memory.limit(memory.used_bytes * 100 // 96)
    assert client.call("QLEN", "q") == 0  # any command makes room
    assert memory.used_bytes <= memory.full_bytes


def test_one_command_evicts_as_much_as_is_needed() -> None:
    server = LocalServer()
    client = server.client()
    for _ in range(200):
        client.call("ADDJOB", "q", b"x" * 1000, 0, "RETRY", 0)
        client.call("GETJOB", "FROM", "q")
    memory = server.broker.node.memory
    memory.limit(memory.base_bytes + 20_000)
    client.call("PING")
    assert memory.used_bytes <= memory.full_bytes


def test_without_eviction_what_is_full_stays_full() -> None:
    server = LocalServer(maxmemory_policy="noeviction")
    client = server.client()
    for _ in range(50):
        client.call("ADDJOB", "q", b"x" * 1000, 0, "RETRY", 0)
        client.call("GETJOB", "FROM", "q")
    server.broker.node.memory.limit(1000)
    assert client.raw("ADDJOB", "q", "body", 0) == OUT_OF_MEMORY
    assert server.broker.node.jobs.count == 50


def test_jobs_that_wait_or_may_come_again_are_never_evicted() -> None:
    server = LocalServer()
    client = server.client()
    for retry_s in (0, 100):
        client.call("ADDJOB", f"waits {retry_s}", "body", 0, "RETRY", retry_s)
    client.call("ADDJOB", "out", "body", 0, "RETRY", 100)
    client.call("GETJOB", "FROM", "out")
    server.broker.node.memory.limit(1000)
    assert client.raw("ADDJOB", "q", "body", 0) == OUT_OF_MEMORY
    assert server.broker.node.jobs.count == 3


def test_from_three_quarters_on_a_node_alone_takes_no_jobs_and_says_why() -> None:
    server = LocalServer()
    memory = server.broker.node.memory
    memory.limit(memory.used_bytes * 100 // 80)
    reason = b"since I'm unable to hold a copy of the message for the following reason: I'm out of memory\r\n"
    assert server.client().raw("ADDJOB", "q", "body", 0).endswith(reason)


def test_a_limit_of_0_refuses_nothing_but_counts_as_pressure() -> None:
    server = LocalServer(maxmemory=0)
    client = server.client()
    assert client.call("GETJOB", "NOHANG", "FROM", "q") is None
    assert client.raw("ENQUEUE") == b":0\r\n"
    assert client.raw("ADDJOB", "q", "body", 0).startswith(b"-NOREPL")
