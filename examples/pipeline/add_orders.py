"""Put orders into the first queue of the pipeline: `python add_orders.py URL COUNT`."""

import sys

import penstock.blocking

FRUITS = ("apple", "pear", "melon", "stone")


def main(url: str, count: int) -> None:
    orders = [{"id": number, "fruit": FRUITS[number % 4], "count": number % 5} for number in range(count)]
    with penstock.blocking.connect(url) as store:
        store.queue("orders").push_many(orders)
    print(f"{count} orders")


main(sys.argv[1], int(sys.argv[2]))
