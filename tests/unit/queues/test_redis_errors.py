"""Errors of redis-py as errors of Penstock: whether the command may have been executed, and what to do."""

from __future__ import annotations

import pytest
from redis import exceptions

from penstock.errors import AuthenticationError, ConnectionLost, OutcomeUnknown, PenstockError, StoreError, TimedOut
from penstock.queues.stores.redis.errors import explain


def explained(problem: Exception, *, was_sent: bool = True, idempotent: bool = False) -> PenstockError:
    return explain(problem, "redis+oq://host", was_sent=was_sent, idempotent=idempotent)


@pytest.mark.parametrize("problem", [exceptions.ConnectionError("x"), exceptions.TimeoutError("x"), OSError("x")])
def test_a_link_that_breaks(problem: Exception) -> None:
    assert type(explained(problem, was_sent=False)) is ConnectionLost
    assert type(explained(problem, was_sent=True)) is OutcomeUnknown
    assert isinstance(explained(problem, was_sent=True, idempotent=True), ConnectionLost)


def test_a_time_that_is_over() -> None:
    assert type(explained(TimeoutError(), idempotent=True)) is TimedOut


REFUSALS = [
    (exceptions.OutOfMemoryError("command not allowed"), StoreError, "memory is full"),
    (exceptions.ResponseError("OOM command not allowed when used memory > 'maxmemory'."), StoreError, "memory is full"),
    (
        exceptions.ResponseError("Error running script (call to f_1): @user_script:9: -OOM command not allowed"),
        StoreError,
        "memory is full",
    ),
    (exceptions.ReadOnlyError("You can't write"), StoreError, "a replica"),
    (exceptions.NoPermissionError("this user"), StoreError, "rights"),
    (exceptions.ResponseError("WRONGTYPE Operation against a key. script: 1, on @x:1."), StoreError, "something else"),
    (exceptions.ResponseError("MISCONF Redis is configured"), StoreError, "its disk"),
    (exceptions.ResponseError("NOREPLICAS Not enough"), StoreError, "fewer replicas"),
    (exceptions.ResponseError("BUSY Redis is busy"), StoreError, "a script"),
    (exceptions.ResponseError("MOVED 1 host:7000"), StoreError, "cluster=1"),
    (exceptions.BusyLoadingError("Redis is loading"), ConnectionLost, "loading its data"),
    (exceptions.ClusterDownError("CLUSTERDOWN x"), ConnectionLost, "at the moment"),
    (exceptions.TryAgainError("x"), ConnectionLost, "moving these keys"),
    (exceptions.SlotNotCoveredError("x"), ConnectionLost, "at the moment"),
    (exceptions.RedisClusterException("x"), ConnectionLost, "Cluster"),
    (exceptions.ResponseError("ERR whatever"), StoreError, "whatever"),
    (exceptions.AuthenticationError("invalid username-password pair"), AuthenticationError, "user:password@host"),
    (exceptions.ResponseError("NOAUTH Authentication required."), AuthenticationError, "user:password@host"),
]


@pytest.mark.parametrize(("problem", "kind", "words"), REFUSALS, ids=[repr(str(row[0]))[:40] for row in REFUSALS])
def test_a_refusal_is_certain_and_says_what_to_do(problem: Exception, kind: type[PenstockError], words: str) -> None:
    error = explained(problem)
    assert type(error) is kind
    assert words in str(error)
    assert " script: " not in str(error)


def test_a_master_that_is_one_no_longer_is_a_link_that_is_lost() -> None:
    try:
        try:
            raise exceptions.ReadOnlyError("You can't write against a read only replica.")
        except exceptions.ReadOnlyError:
            raise exceptions.ConnectionError("The previous master is now a slave") from None
    except exceptions.ConnectionError as problem:
        error = explained(problem)
    assert type(error) is ConnectionLost
