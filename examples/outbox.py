"""Push a job in the transaction that it belongs to: either both are there, or neither.

    python examples/outbox.py shop.db

The queue is in the same SQLite file as the orders. The same works in PostgreSQL, with a connection of psycopg.
"""

import asyncio
import sqlite3
import sys

import penstock


async def order(store: penstock.Store, connection: sqlite3.Connection, item: str, count: int) -> None:
    """An order, and the job that ships it."""
    with connection:
        row = connection.execute("INSERT INTO orders (item, count) VALUES (?, ?) RETURNING number", (item, count))
        (number,) = row.fetchone()
        await store.queue("shipping").push({"order": number}, connection=connection)
        if count < 1:
            raise ValueError(f"{count} of {item} can't be shipped")


async def main(path: str) -> None:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE IF NOT EXISTS orders (number INTEGER PRIMARY KEY, item TEXT, count INTEGER)")
    async with penstock.connect(f"sqlite:///{path}") as store:
        await order(store, connection, "apple", 3)
        try:
            await order(store, connection, "pear", 0)
        except ValueError as problem:
            print("refused:", problem)

        async def ship(job: penstock.Job) -> None:
            print("shipping order", job.payload["order"])

        print(await penstock.Worker(store, "shipping", ship).run(until_empty=True))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
