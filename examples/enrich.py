"""Read jobs as a stream, add something to each, and write them to another queue.

    python examples/enrich.py sqlite:///jobs.db orders priced

Jobs that can't be read go to the dead letters with their error, and the stream goes on.
"""

import json
import sys

from pyspark.sql import DataFrame

from penstock.spark.dead_letters import split, to_dead_letters, trying
from penstock.spark.session import local_session

PRICES = {"apple": 3, "pear": 5}


def priced(body: bytes) -> str:
    """The order with its price, as JSON."""
    order = json.loads(bytes(body))
    return json.dumps({**order, "price": PRICES[order["item"]] * order["count"]})


def main(url: str, source: str, target: str) -> None:
    spark = local_session("enrich")
    orders = spark.readStream.format("penstock").option("url", url).option("queue", source).load()
    price = trying(priced, "string")

    def handle(batch: DataFrame, number: int) -> None:
        good, bad = split(batch.withColumn("payload", price("body")), "payload")
        # An order keeps its id as the key of the new job: a batch that is run again adds none twice.
        jobs = good.select("payload", "id")
        writer = jobs.write.format("penstock").option("url", url).option("queue", target)
        writer.option("uniqueColumn", "id").mode("append").save()
        to_dead_letters(bad, url, source)

    orders.writeStream.foreachBatch(handle).trigger(availableNow=True).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
