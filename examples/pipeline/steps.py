"""The functions of the links in `orders.toml`."""

import asyncio
from typing import Any

import penstock.blocking
from penstock import Fail
from penstock.pipelines import DROP, Move

PRICES = {"apple": 2, "pear": 3, "melon": 40}
EXPRESS_FROM = 50

Order = dict[str, Any]


def validate(order: Order) -> Any:
    """Drop orders of nothing; what can't be right is for a person to look at."""
    if order["count"] == 0:
        return DROP
    if order["fruit"] not in PRICES:
        raise Fail(f"there is no {order['fruit']}")
    return None  # it goes on unchanged


def price(orders: Any) -> Any:
    """Many orders at once, as a DataFrame."""
    orders["price"] = orders["fruit"].map(PRICES) * orders["count"]
    return orders


def choose(job: penstock.blocking.Job) -> Move:
    is_express = job.payload["price"] >= EXPRESS_FROM
    return Move(to="express" if is_express else "normal", headers={"express": is_express})


async def pack(order: Order) -> Order:
    """Ask another service, as an async function would."""
    await asyncio.sleep(0.001)
    return {**order, "packed": True}


def send(order: Order) -> None:
    """The last one: the job leaves the pipeline."""
    # One write with its line end: plain functions run in threads, which would mix their lines otherwise.
    print(f"sent {order['count']} {order['fruit']}\n", end="", flush=True)
