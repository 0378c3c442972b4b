"""Errors of redis-py as errors of Penstock.

What matters is whether the server may have run the command:

    not sent, or refused                ConnectionLost if it may work later, else StoreError: nothing was done
    sent, no reply, idempotent          ConnectionLost: to repeat it is harmless
    sent, no reply, not idempotent      OutcomeUnknown: the caller decides
"""

import re
import ssl
from typing import NamedTuple

from redis import exceptions

from penstock.errors import AuthenticationError, ConnectionLost, OutcomeUnknown, PenstockError, StoreError, TimedOut

# What redis-py raises when a connection fails: its own errors are not OSErrors.
CONNECTION_ERRORS = (exceptions.ConnectionError, exceptions.TimeoutError, OSError, EOFError)
REDIS_ERRORS = (exceptions.RedisError, exceptions.RedisClusterException, OSError, EOFError)


class _Refusal(NamedTuple):
    error: type[PenstockError]
    advice: str


# The code that an error reply begins with, and what to do about it. Nothing was done in any of these cases.
_REFUSALS = {
    "OOM": _Refusal(
        StoreError,
        "its memory is full (maxmemory): raise the limit, or consume jobs, which still works",
    ),
    "READONLY": _Refusal(StoreError, "it is a replica: connect to its master, or through Sentinel"),
    "MISCONF": _Refusal(StoreError, "it can't save to its disk, and refuses writes until it can: see its log"),
    "NOREPLICAS": _Refusal(StoreError, "it has fewer replicas than min-replicas-to-write requires"),
    "WRONGTYPE": _Refusal(StoreError, "another program keeps something else under a key of this queue"),
    "NOPERM": _Refusal(
        StoreError,
        "the user needs rights to EVAL, EVALSHA, TIME, SCAN, SUBSCRIBE and PUBLISH, and to the keys and channels "
        "keuss:* and penstock:*",
    ),
    "BUSY": _Refusal(StoreError, "a script has been running for too long: SCRIPT KILL ends it"),
    "MOVED": _Refusal(StoreError, "it is a node of a Redis Cluster: add ?cluster=1 to the URL"),
    "ASK": _Refusal(ConnectionLost, "the Cluster is moving these keys: try again"),
    "CROSSSLOT": _Refusal(StoreError, "in a Redis Cluster, the queues of one call need the same hash tag: {tag}name"),
    "LOADING": _Refusal(ConnectionLost, "it is still loading its data: try again later"),
    "CLUSTERDOWN": _Refusal(ConnectionLost, "the Cluster doesn't serve these keys at the moment: try again"),
    "MASTERDOWN": _Refusal(ConnectionLost, "it has lost its master: try again"),
    "TRYAGAIN": _Refusal(ConnectionLost, "the Cluster is moving these keys: try again"),
}
_CODE = re.compile(rf"(?:^|[\s:-])({'|'.join(_REFUSALS)})\b")

# redis-py removes the code where it has a class for it.
_CLASSES = {
    exceptions.OutOfMemoryError: "OOM",
    exceptions.ReadOnlyError: "READONLY",
    exceptions.NoPermissionError: "NOPERM",
    exceptions.BusyLoadingError: "LOADING",
    exceptions.MasterDownError: "MASTERDOWN",
    exceptions.ClusterDownError: "CLUSTERDOWN",
    exceptions.TryAgainError: "TRYAGAIN",
    exceptions.ClusterCrossSlotError: "CROSSSLOT",
    exceptions.MovedError: "MOVED",
    exceptions.AskError: "ASK",
    exceptions.SlotNotCoveredError: "CLUSTERDOWN",
}


def explain(problem: Exception, where: str, *, was_sent: bool, idempotent: bool) -> PenstockError:
    """Return the error to raise instead. `idempotent`: to run the command twice is harmless."""
    if isinstance(problem, exceptions.AuthenticationError | exceptions.AuthenticationWrongNumberOfArgsError):
        return _authentication(problem, where)
    if isinstance(problem.__context__, exceptions.ReadOnlyError) and isinstance(problem, exceptions.ConnectionError):
        # redis-py makes this of READONLY under Sentinel; the next connection goes to the new master.
        return ConnectionLost(f"{where} is not the master any more: try again")
    refusal = _refusal(problem, where)
    if refusal is not None:
        return refusal
    if isinstance(problem, CONNECTION_ERRORS):
        return _lost(problem, where, was_sent=was_sent, idempotent=idempotent)
    if isinstance(problem, exceptions.RedisClusterException):
        return ConnectionLost(f"the Redis Cluster at {where} can't be reached: {problem}")
    return StoreError(f"Redis at {where} refused: {problem}")


def _authentication(problem: Exception, where: str) -> PenstockError:
    text = str(problem)
    code = "NOAUTH" if "required" in text.lower() else "WRONGPASS"
    return AuthenticationError(
        f"{code} {where} requires a password, or the user or password is wrong: {text.rstrip('.')}. "
        "Put both into the URL: redis+oq://user:password@host; without a user, redis+oq://:password@host"
    )


def _refusal(problem: Exception, where: str) -> PenstockError | None:
    code = next((code for kind, code in _CLASSES.items() if isinstance(problem, kind)), None)
    if code is None and isinstance(problem, exceptions.ResponseError):
        found = _CODE.search(str(problem))
        if found is not None:
            code = found[1]
        elif str(problem).startswith("NOAUTH"):
            return _authentication(problem, where)
    if code is None:
        return None
    error, advice = _REFUSALS[code]
    reply = str(problem).partition(" script: ")[0].rstrip(".")
    return error(f"Redis at {where} refused ({reply}): {advice}")


def _lost(problem: Exception, where: str, *, was_sent: bool, idempotent: bool) -> PenstockError:
    text = str(problem).rstrip(".") or "timed out"  # what asyncio raises has no text
    if not was_sent:
        return ConnectionLost(f"can't reach Redis at {where}: {text}. {_advice(problem, where)}")
    if not idempotent:
        return OutcomeUnknown(
            f"lost the connection to Redis at {where} before its reply: {text}. The command may have been executed, "
            "so it was not repeated"
        )
    if isinstance(problem, exceptions.TimeoutError | TimeoutError):
        return TimedOut(f"Redis at {where} did not reply in time: {text}")
    return ConnectionLost(f"lost the connection to Redis at {where}: {text}")


def _advice(problem: BaseException, where: str) -> str:
    text = str(problem)
    if isinstance(problem.__cause__ or problem.__context__, ssl.SSLError) or "SSL" in text or "certificate" in text:
        return "For TLS, put what is needed into the URL: ssl_ca_certs=FILE, ssl_certfile=FILE, ssl_keyfile=FILE"
    if where.startswith("rediss"):
        return "Start it, or correct the URL; if it doesn't use TLS, use redis in place of rediss"
    return "Start it, or correct the URL; if it requires TLS, use rediss in place of redis"
