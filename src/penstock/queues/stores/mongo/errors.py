"""Errors of pymongo as errors of Penstock.

What matters is whether the server may have done what it was asked for:

| what happened | error |
|---|---|
| no server was found, or there was no connection to send on | `ConnectionLost`: nothing was done |
| the connection broke, or a primary stepped down, under what can be repeated | `ConnectionLost` |
| the same under what must not be done twice | `OutcomeUnknown` |
| a write was done, but not confirmed by as many members as the write concern wants | as if the connection broke |
| the server refuses: rights, disk, an index that is not Keuss' | `StoreError` |
| user or password are wrong | `AuthenticationError` |
| a document that is too large | `BadPayload` |
| within a transaction of the caller, what makes it fail as a whole but not for good | pymongo's own error: its label |
| | lets `with_transaction` repeat the transaction |
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bson.errors import BSONError
from pymongo import errors

from penstock.errors import (
    AuthenticationError,
    BadPayload,
    CallerError,
    ConnectionLost,
    OutcomeUnknown,
    PenstockError,
    StoreError,
    TimedOut,
)

MONGO_ERRORS = (errors.PyMongoError, BSONError, OSError)

SAME_KEY = 11000  # a second document with one key
COLLECTION_EXISTS = 48
NO_COLLECTION = 26
_NOT_AUTHENTICATED = frozenset({18, 8000})
_TOO_LARGE = frozenset({10334, 17280, 17420})
# The member isn't the primary: nothing was done. Its other errors of that kind may come after the write.
_NOT_PRIMARY = frozenset({10107, 13435})
_STEPPED_DOWN = frozenset({91, 189, 11600, 11602})
_UNCONFIRMED = frozenset({64, 79, 100})  # of write concerns
_ADVICE = {
    13: "The user needs the role readWrite on this database, and on those of the statistics (DATABASE_stats) and the "
    "signals (DATABASE_signal).",
    20: "Transactions need a replica set.",
    85: "An index of that name has other options. For mongodb+ps, ttl must be the same for all users of a queue: to "
    "change it, drop the index processed_1.",
    86: "An index of that name has other keys: is this a collection of Keuss?",
    112: "It collided with other writes: try again.",
    14031: "The disk of the server is full: free space there.",
}
_COLLISIONS = frozenset({112, 251})  # nothing was done; it can be repeated


TRANSIENT = "TransientTransactionError"  # a label: the whole transaction may be repeated


@contextmanager
def translated(where: str, is_once: bool, may_retry: bool, is_callers: bool = False) -> Iterator[None]:
    """Raise the errors of Penstock in place of pymongo's; see `explain`. `is_callers`: in a transaction of theirs."""
    try:
        yield
    except MONGO_ERRORS as problem:
        if is_callers and isinstance(problem, errors.PyMongoError) and problem.has_error_label(TRANSIENT):
            raise
        raise explain(problem, where, is_once, may_retry) from problem


def code_of(problem: BaseException) -> int | None:
    """Return MongoDB's code of an error that `explain` made, or of one of pymongo's."""
    cause = problem.__cause__ if isinstance(problem, PenstockError) else problem
    return _code(cause) if isinstance(cause, Exception) else None


def _code(problem: Exception) -> int | None:
    if isinstance(problem, errors.BulkWriteError):
        details: Any = problem.details or {}
        for found in (*details.get("writeErrors", ()), *details.get("writeConcernErrors", ())):
            code = found.get("code")
            return code if isinstance(code, int) else None
    return problem.code if isinstance(problem, errors.OperationFailure) else None


def explain(problem: Exception, where: str, is_once: bool, may_retry: bool) -> PenstockError:
    """Return the error to raise instead. `is_once`: it must not be done twice.

    `may_retry`: pymongo may have sent it before, so that a refused connection doesn't prove that nothing was done.
    """
    text = _text_of(problem)
    code = _code(problem)
    if isinstance(problem, errors.InvalidOperation) and "close" in text:
        return CallerError(f"the connection to {where} is closed: open the store again")
    if code in _NOT_AUTHENTICATED:
        return AuthenticationError(
            f"WRONGPASS {where} requires a user and a password, or they are wrong: {text}. Put both into the URL, and "
            "authSource=DATABASE if the user is of another database."
        )
    if isinstance(problem, errors.DocumentTooLarge) or code in _TOO_LARGE or "larger than" in text:
        return BadPayload(
            f"a job on MongoDB must be at most 16777216 bytes with all its fields: {text}. "
            "Keep the payload elsewhere, and send its address."
        )
    if code in _COLLISIONS:
        return ConnectionLost(f"MongoDB at {where} gave up: {text}. {_ADVICE[112]}")
    if _was_not_sent(problem, code, text, may_retry):
        return ConnectionLost(f"can't reach MongoDB at {where}: {text}. {_connection_advice(text)}")
    if isinstance(problem, errors.ConnectionFailure | errors.WTimeoutError | OSError) or code in (
        _STEPPED_DOWN | _UNCONFIRMED
    ):
        return _lost(problem, where, text, is_once)
    if isinstance(problem, errors.OperationFailure):
        return StoreError(f"MongoDB at {where} refused: {text}. {_ADVICE.get(code or 0, '')}".rstrip())
    if isinstance(problem, BSONError | errors.InvalidName):
        return CallerError(f"MongoDB can't store this: {text}")
    return StoreError(f"MongoDB at {where}: {text}")


def _text_of(problem: Exception) -> str:
    if isinstance(problem, errors.BulkWriteError):
        details: Any = problem.details or {}
        found = [*details.get("writeErrors", ()), *details.get("writeConcernErrors", ())]
        if found:
            return str(found[0].get("errmsg", problem)).rstrip(".")
    # pymongo adds the whole description of the topology, or of the reply.
    text = str(problem).partition(", full error:")[0].partition(", Timeout:")[0].partition(" (configured timeouts")[0]
    return " ".join(text.split()).rstrip(".") or type(problem).__name__


def _was_not_sent(problem: Exception, code: int | None, text: str, may_retry: bool) -> bool:
    if isinstance(problem, errors.ServerSelectionTimeoutError | errors.WaitQueueTimeoutError):
        return True
    if code in _NOT_PRIMARY:
        return True
    return not may_retry and isinstance(problem, errors.ConnectionFailure) and "Connection refused" in text


def _connection_advice(text: str) -> str:
    if "SSL" in text or "certificate" in text or "TLS" in text:
        return "For TLS, put what is needed into the URL: tls=true, tlsCAFile=FILE, tlsCertificateKeyFile=FILE"
    return "Start it, or correct the URL; if it requires TLS, add tls=true"


def _lost(problem: Exception, where: str, text: str, is_once: bool) -> PenstockError:
    if is_once:
        return OutcomeUnknown(
            f"lost the connection to MongoDB at {where} before its reply: {text}. The command may have been executed, "
            "so it was not repeated"
        )
    if isinstance(problem, errors.NetworkTimeout):
        return TimedOut(f"MongoDB at {where} did not reply in time: {text}")
    return ConnectionLost(f"lost the connection to MongoDB at {where}: {text}")
