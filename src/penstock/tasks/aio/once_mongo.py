"""`once` on MongoDB: a block with the job's mark as one transaction of a session, which needs a replica set."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

from pymongo import ReadPreference, WriteConcern
from pymongo.errors import ConfigurationError, DuplicateKeyError, OperationFailure, PyMongoError
from pymongo.read_concern import ReadConcern

from penstock.errors import CallerError
from penstock.queues.aio.runtime import sleep
from penstock.queues.stores.mongo.aio.link import Collection, Session
from penstock.tasks.once import TABLE, EffectMark

WAIT_S_MAX = 90.0  # for another run; the server ends its transaction after a minute
PAUSE_S = 0.05
_NO_TRANSACTIONS = 20  # IllegalOperation: the server is on its own
_TRANSIENT = "TransientTransactionError"


@asynccontextmanager
async def on_mongo(session: Session, mark: EffectMark) -> AsyncIterator[bool]:
    """Run a block within a transaction of a session: the one that is open there, or one of its own."""
    marks = _marks(session, mark)
    if session.in_transaction:
        yield await _add(marks, session, mark)
        return
    # Neither a collection nor an index can be made in a transaction where others do it, too. MongoDB removes the marks.
    await marks.create_index("kept_until", expireAfterSeconds=0)
    is_first = await _begin(marks, session, mark)
    try:
        yield is_first
        if not _is_open(session):
            raise CallerError("the block of once() must not commit or abort: it does so itself, at its end")
        await session.commit_transaction()
    except BaseException:
        if _is_open(session):
            await session.abort_transaction()
        raise


def _is_open(session: Session) -> bool:
    return session.in_transaction


def _marks(session: Session, mark: EffectMark) -> Collection:
    try:
        database: Any = session.client.get_default_database(mark.database)
    except ConfigurationError as problem:
        raise CallerError(
            "once() needs to know the database: put it into the URL of the client, or write database="
        ) from problem
    if mark.database is not None:
        database = session.client.get_database(mark.database)
    marks: Collection = database.get_collection(TABLE)
    return marks


async def _begin(marks: Collection, session: Session, mark: EffectMark) -> bool:
    """Begin the transaction with the mark; waits while another run is within its block."""
    end = time.monotonic() + WAIT_S_MAX
    while True:
        await session.start_transaction(
            read_concern=ReadConcern("snapshot"),
            write_concern=WriteConcern("majority"),
            read_preference=ReadPreference.PRIMARY,
        )
        try:
            return await _add(marks, session, mark)
        except PyMongoError as problem:
            await session.abort_transaction()
            is_other = isinstance(problem, DuplicateKeyError) or problem.has_error_label(_TRANSIENT)
            if not is_other or time.monotonic() > end:
                raise
        except BaseException:
            await session.abort_transaction()
            raise
        await sleep(PAUSE_S)


async def _add(marks: Collection, session: Session, mark: EffectMark) -> bool:
    key = {"job": mark.job, "step": mark.step}
    try:
        if await marks.find_one({"_id": key}, session=session) is not None:
            return False
        until = datetime.fromtimestamp(mark.kept_until, UTC)
        await marks.insert_one({"_id": key, "kept_until": until}, session=session)
    except OperationFailure as problem:
        if problem.code == _NO_TRANSACTIONS:
            raise CallerError("once() needs transactions, which MongoDB has on replica sets only") from problem
        raise
    return True
