"""What a million results cost: `python -m bench.results disque`, one line of JSON.

    .venv/bin/python -m bench.results sqlite --results 1000000

Results are put as workers do it, 500 at the same time, and some are read again in no order. Memory is that of the
server's process, disk that of the SQLite file and its log. The server keeps nothing on the disk.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from bench.servers import HOST, running, stop_on_sigterm
from penstock.queues import aio
from penstock.tasks.results import RESULT_TTL_S, done_text, key_of

TOGETHER = 500
READS = 1000
REPORT = {"path": "/var/shop/orders/2026-03-01.csv", "rows": 1234}  # of each call


async def measure(url: str, count: int) -> dict[str, float]:
    """Put results and read some of them."""
    async with aio.connect(url) as store:
        text = done_text(REPORT, time.time())
        await store.put_value(key_of("warm"), text, ttl=RESULT_TTL_S)
        began, cpu = time.perf_counter(), time.process_time()
        numbers = iter(range(count))

        async def put() -> None:
            for number in numbers:
                await store.put_value(key_of(f"{number:032x}"), text, ttl=RESULT_TTL_S)

        await asyncio.gather(*(put() for _ in range(TOGETHER)))
        seconds, cpu_s = time.perf_counter() - began, time.process_time() - cpu
        began = time.perf_counter()
        for _ in range(READS):
            assert await store.value(key_of(f"{random.randrange(count):032x}")) == text
        read_s = (time.perf_counter() - began) / READS
    figures = {"results": count, "bytes": len(text), "put_per_s": count / seconds, "put_us_cpu": cpu_s / count * 1e6}
    return figures | {"read_ms": read_s * 1000}


def main() -> None:
    """Measures one store, and prints."""
    parser = argparse.ArgumentParser(description="What many results cost a store.")
    parser.add_argument("store", choices=("sqlite", "redis+oq", "disque"))
    parser.add_argument("--results", type=int, default=1_000_000)
    chosen = parser.parse_args()
    stop_on_sigterm()
    with ExitStack() as stack:
        if chosen.store == "sqlite":
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-results-")))
            figures = asyncio.run(measure(f"sqlite:///{folder}/jobs.db", chosen.results))
            figures["disk_mb"] = sum(file.stat().st_size for file in folder.iterdir()) / 1e6
        else:
            server = stack.enter_context(running("redis" if chosen.store == "redis+oq" else "penstock"))
            before = server.rss_bytes()
            figures = asyncio.run(measure(f"{chosen.store}://{HOST}:{server.port}", chosen.results))
            figures["memory_mb"] = (server.rss_bytes() - before) / 1e6
    print(json.dumps({"store": chosen.store} | {name: round(value, 3) for name, value in figures.items()}))


if __name__ == "__main__":
    main()
