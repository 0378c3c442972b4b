"""Claims in PostgreSQL: a row of `penstock_claims` for each key, with the jobs that it got."""

from penstock.errors import StoreError
from penstock.job import StoredJob
from penstock.queues.stores.postgres.aio.base import PostgresBase
from penstock.queues.stores.postgres.aio.client import code_of
from penstock.queues.stores.postgres.aio.link import Rows
from penstock.queues.stores.postgres.side_tables import ACK_CLAIM, CLAIM, CLAIM_AGAIN, NACK_CLAIM

CLAIMS = "penstock_claims"
IS_TAKEN = "23505"  # PostgreSQL's code for a second row under one key


class PostgresClaims(PostgresBase):
    """`claim` and its kin."""

    async def claim(self, queue: str, key: str, count: int, lease_ms: int) -> list[StoredJob]:
        await self._pool.make_sure(CLAIMS)
        statement = self._filled(CLAIM, queue)
        try:
            rows = await self._run(queue, statement, self._shift, queue, key, str(count), str(lease_ms))
        except StoreError as problem:
            if code_of(problem) != IS_TAKEN:
                raise
            rows = [(True,)]  # somebody has begun the same claim at the same moment
        if rows and rows[-1][-1]:
            again = await self._again(queue, key, lease_ms)
            return [self._leased(row) for row in sorted(again, key=lambda row: row[-1])]
        return [self._leased(row) for row in sorted(rows[:-1], key=lambda row: (row[4], row[0]))]

    async def _again(self, queue: str, key: str, lease_ms: int) -> Rows:
        await self._pool.make_sure(CLAIMS)
        return await self._run(queue, self._filled(CLAIM_AGAIN, queue), self._shift, queue, key, str(lease_ms))

    async def extend_claim(self, queue: str, key: str, lease_ms: int) -> int:
        return len(await self._again(queue, key, lease_ms))

    async def ack_claim(self, queue: str, key: str) -> int:
        await self._pool.make_sure(CLAIMS)
        return self._count(await self._run(queue, self._filled(ACK_CLAIM, queue), queue, key))

    async def nack_claim(self, queue: str, key: str, delay_ms: int) -> int:
        await self._pool.make_sure(CLAIMS)
        statement = self._filled(NACK_CLAIM, queue)
        return self._count(await self._run(queue, statement, self._shift, queue, key, str(delay_ms)))

    @staticmethod
    def _count(rows: Rows) -> int:
        return int(rows[0][0]) if rows else 0
