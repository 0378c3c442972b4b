"""The jobs of one queue: its collection, whose documents are seen as the layout shows them.

Filters, updates, fields and orders are said as for `mongodb:`, and documents come back in that form: see `layout`.
"""

from collections.abc import Iterable, Sequence

from pymongo import ASCENDING, DeleteOne, InsertOne, UpdateOne
from pymongo.results import BulkWriteResult

from penstock.queues.stores.mongo.aio.link import Collection, Document, MongoLink, Session
from penstock.queues.stores.mongo.layout import Layout, Update

Order = Sequence[tuple[str, int]]
Write = tuple[Document, Update | None]  # which job, and what becomes of it; None: its document is deleted
BY_TIME: Order = (("mature", ASCENDING),)


class Jobs:
    """Where the jobs of a queue are."""

    def __init__(self, link: MongoLink, layout: Layout, queue: str, collection: Collection | None = None) -> None:
        self._layout = layout
        self.collection = link.collection(layout.collection(queue)) if collection is None else collection

    async def find(
        self,
        wanted: Document,
        fields: Document | None = None,
        order: Order | None = None,
        limit: int = 0,
        session: Session | None = None,
    ) -> list[Document]:
        """Return jobs; of a document that has several, the first."""
        found = await self.find_stored(wanted, fields, order, limit, session)
        return [self._layout.seen(document) for document in found]

    async def find_stored(
        self,
        wanted: Document,
        fields: Document | None = None,
        order: Order | None = None,
        limit: int = 0,
        session: Session | None = None,
    ) -> list[Document]:
        """Return documents as they are stored."""
        stored = self._layout.stored
        cursor = self.collection.find(stored(wanted), fields and stored(fields), limit=limit, session=session)
        if order is not None:
            cursor = cursor.sort(list(stored(dict(order)).items()))
        return await cursor.to_list()

    async def take(
        self, wanted: Document, update: Update | None, fields: Document | None = None, order: Order | None = None
    ) -> Document | None:
        """Change or delete one job; return it as it was before."""
        stored = self._layout.stored
        sort = None if order is None else list(stored(dict(order)).items())
        fields = fields and stored(fields)
        if update is None:
            found = await self.collection.find_one_and_delete(stored(wanted), fields, sort=sort)
        else:
            found = await self.collection.find_one_and_update(stored(wanted), stored(update), fields, sort=sort)
        return None if found is None else self._layout.seen(found)

    async def update_one(self, wanted: Document, update: Update) -> bool:
        """Change one job; return whether there was one."""
        stored = self._layout.stored
        return (await self.collection.update_one(stored(wanted), stored(update))).matched_count > 0

    async def change_all(self, wanted: Document, update: Update | None) -> int:
        """Change or delete all jobs; return how many documents that were."""
        stored = self._layout.stored
        if update is None:
            return (await self.collection.delete_many(stored(wanted))).deleted_count
        return (await self.collection.update_many(stored(wanted), stored(update))).modified_count

    async def write(self, writes: Iterable[Write], session: Session | None = None, makes: bool = False) -> int:
        """Change or delete one job for each; return how many there were. `makes`: make documents that are missing."""
        stored = self._layout.stored
        requests = [
            DeleteOne(stored(wanted)) if update is None else UpdateOne(stored(wanted), stored(update), upsert=makes)
            for wanted, update in writes
        ]
        if not requests:
            return 0
        result = await self.collection.bulk_write(requests, ordered=False, session=session)
        return result.deleted_count + result.matched_count

    async def add(
        self, documents: Sequence[Document], ordered: bool = True, session: Session | None = None
    ) -> BulkWriteResult | None:
        """Store new jobs, in the form that the layout made."""
        changes = [self._layout.added(document) for document in documents]
        if not changes or changes[0] is None:
            await self.collection.insert_many(documents, ordered=ordered, session=session)
            return None
        requests: list[UpdateOne | InsertOne[Document]] = [
            UpdateOne(*change, upsert=True) for change in changes if change is not None
        ]
        return await self.collection.bulk_write(requests, ordered=True, session=session)

    async def totals(self, wanted: Document, sums: Document) -> Document | None:
        """Return sums over jobs; None if there are none."""
        stored = self._layout.stored
        stages = [{"$match": stored(wanted)}, {"$group": {"_id": None, **stored(sums)}}]
        async for row in await self.collection.aggregate(stages):
            return row
        return None
