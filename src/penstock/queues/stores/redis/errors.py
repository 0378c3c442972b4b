"""What an error of redis-py means, in the words of our own tree.

The one question that matters is whether the server may have done what it was told:

    not sent, or refused with nothing done     ConnectionLost if it may work later, else StoreError
    sent, and harmless to do again             ConnectionLost
    sent, and not harmless to do again         OutcomeUnknown: the caller decides
"""

import re
import ssl
from typing import NamedTuple

from redis import exceptions

from penstock.errors import AuthenticationError, ConnectionLost, OutcomeUnknown, PenstockError, StoreError, TimedOut

# What redis-py raises when it can't talk to a server; its own errors are no OSErrors.
BROKEN = (exceptions.ConnectionError, exceptions.TimeoutError, OSError, EOFError)
RAISED = (exceptions.RedisError, exceptions.RedisClusterException, OSError, EOFError)


class _Refusal(NamedTuple):
    kind: type[PenstockError]
    advice: str


# The code that a refusal begins with: what it is for us, and what to do about it. Nothing was done in any of them.
_REFUSALS = {
    "OOM": _Refusal(
        StoreError,
        "its memory is full (maxmemory): raise the limit, or take jobs out, which still works",
    ),
    "READONLY": _Refusal(StoreError, "it is a replica: connect to its master, or through Sentinel"),
    "MISCONF": _Refusal(StoreError, "it can't save to its disk, and takes no writes until it can: see its log"),
    "NOREPLICAS": _Refusal(StoreError, "it has fewer replicas than min-replicas-to-write demands"),
    "WRONGTYPE": _Refusal(StoreError, "another program keeps something else under a key of this queue"),
    "NOPERM": _Refusal(
        StoreError,
        "its user needs rights to EVAL, EVALSHA, TIME, SCAN, SUBSCRIBE and PUBLISH, and to the keys and channels "
        "keuss:* and penstock:*",
    ),
    "BUSY": _Refusal(StoreError, "it runs a script that takes too long: SCRIPT KILL ends it"),
    "MOVED": _Refusal(StoreError, "it is a node of a Redis Cluster: add ?cluster=1 to the URL"),
    "ASK": _Refusal(ConnectionLost, "the Cluster moves these keys just now: try again"),
    "CROSSSLOT": _Refusal(StoreError, "in a Redis Cluster, the queues of one step need the same hash tag: {tag}name"),
    "LOADING": _Refusal(ConnectionLost, "it still loads its data: try again in a while"),
    "CLUSTERDOWN": _Refusal(ConnectionLost, "the Cluster doesn't serve these keys at the moment: try again"),
    "MASTERDOWN": _Refusal(ConnectionLost, "it has lost its master: try again"),
    "TRYAGAIN": _Refusal(ConnectionLost, "the Cluster moves these keys just now: try again"),
}
_CODE = re.compile(rf"(?:^|[\s:-])({'|'.join(_REFUSALS)})\b")

# redis-py cuts the code off where it has a class for it.
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


def explain(problem: Exception, where: str, *, was_sent: bool, again: bool) -> PenstockError:
    """The error to raise instead. `again` says that what was sent may be done twice without harm."""
    if isinstance(problem, exceptions.AuthenticationError | exceptions.AuthenticationWrongNumberOfArgsError):
        return _authentication(problem, where)
    if isinstance(problem.__context__, exceptions.ReadOnlyError) and isinstance(problem, exceptions.ConnectionError):
        # What redis-py makes of READONLY under Sentinel; the next connection goes to the new master.
        return ConnectionLost(f"{where} is no master any more: try again")
    refusal = _refusal(problem, where)
    if refusal is not None:
        return refusal
    if isinstance(problem, BROKEN):
        return _broken(problem, where, was_sent=was_sent, again=again)
    if isinstance(problem, exceptions.RedisClusterException):
        return ConnectionLost(f"the Redis Cluster at {where} can't be reached: {problem}")
    return StoreError(f"Redis at {where} refused: {problem}")


def _authentication(problem: Exception, where: str) -> PenstockError:
    text = str(problem)
    code = "NOAUTH" if "required" in text.lower() else "WRONGPASS"
    return AuthenticationError(
        f"{code} {where} wants a password, or another one: {text.rstrip('.')}. "
        "Give it in the URL: redis+oq://user:password@host; without a user, redis+oq://:password@host"
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
    kind, advice = _REFUSALS[code]
    said = str(problem).partition(" script: ")[0].rstrip(".")
    return kind(f"Redis at {where} refused ({said}): {advice}")


def _broken(problem: Exception, where: str, *, was_sent: bool, again: bool) -> PenstockError:
    if not was_sent:
        text = str(problem).rstrip(".")
        return ConnectionLost(f"no Redis can be reached at {where}: {text}. {_advice(problem, where)}")
    if not again:
        return OutcomeUnknown(
            f"the link to Redis at {where} broke under a call: {problem}. It may have been done, so it was not repeated"
        )
    if isinstance(problem, exceptions.TimeoutError | TimeoutError):
        return TimedOut(f"Redis at {where} did not answer in time: {problem}")
    return ConnectionLost(f"the link to Redis at {where} broke: {problem}")


def _advice(problem: BaseException, where: str) -> str:
    text = str(problem)
    if isinstance(problem.__cause__ or problem.__context__, ssl.SSLError) or "SSL" in text or "certificate" in text:
        return "For TLS give what is needed in the URL: ssl_ca_certs=FILE, ssl_certfile=FILE, ssl_keyfile=FILE"
    if where.startswith("rediss"):
        return "Start it, or correct the URL; if it speaks no TLS, use redis in place of rediss"
    return "Start it, or correct the URL; if it wants TLS, use rediss in place of redis"
