"""Choose dead letters by SQL, and send them back to the queues that they came from.

python examples/redrive_by_sql.py sqlite:///jobs.db "error LIKE '%timeout%' AND from_queue = 'mail'"
"""

import sys

from pyspark.sql import functions as f

import penstock.blocking
from penstock.queues.dead_letter import DEAD_LETTER_QUEUE, ERROR, FROM_QUEUE
from penstock.spark.session import local_session


def main(url: str, condition: str) -> None:
    spark = local_session("redrive by SQL")
    dead = spark.read.format("penstock").option("url", url).option("queue", DEAD_LETTER_QUEUE).load()
    letters = dead.withColumns({"error": f.col("headers")[ERROR], "from_queue": f.col("headers")[FROM_QUEUE]})
    chosen = {row.id for row in letters.where(condition).select("id").collect()}
    spark.stop()
    with penstock.blocking.connect(url) as store:
        gone = store.dead_letters().redrive(lambda job: job.id in chosen)
    print(gone, "sent back")


if __name__ == "__main__":
    main(*sys.argv[1:])
