"""Use broker nodes directly: jobs under a lease that is extended while they are worked on.

    penstock server &
    python examples/broker_lease.py 127.0.0.1:7711

The lease is short, so that the job of a worker that dies is soon another's; a worker that lives extends it in time.
"""

import asyncio
import sys

from penstock.client import ClusterClient, Job, LeaseOutcome

LEASE_S = 5.0


async def keep(client: ClusterClient, job: Job) -> None:
    """Extend the lease for as long as it is ours."""
    while True:
        await asyncio.sleep(LEASE_S / 3)
        if await client.extend(job, lease=LEASE_S) != [LeaseOutcome.OK]:
            return


async def work(client: ClusterClient, queue: str) -> None:
    while jobs := await client.get(queue, timeout=0.5, lease=LEASE_S, counters=True):
        for job in jobs:
            keeper = asyncio.create_task(keep(client, job))
            try:
                print("resizing", job.body.decode(), "after", job.nacks, "failures")
                if job.body == b"broken.png" and not job.nacks:
                    raise ValueError("no picture")
                outcome = await client.ack_lease(job)
            except ValueError as problem:
                print(problem)
                outcome = await client.nack_lease(job)
            finally:
                keeper.cancel()
            print(outcome[0])


async def main(nodes: str) -> None:
    async with ClusterClient(nodes) as client:
        for picture in (b"cat.png", b"broken.png"):
            await client.add("pictures", picture, retry=60)
        await work(client, "pictures")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
