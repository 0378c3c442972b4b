"""What each layout of MongoDB is for: history, groups of consumers, order by a key, buckets, a pipeline.

    python examples/mongo_layouts.py localhost:27017/shop

Node programs with Keuss can work on the same queues: its backends are mongo, ps-mongo, stream-mongo, intraorder,
bucket-mongo-safe and pl-mongo. Pop and push, reserve, ok and ko are the same calls on all of them.
"""

import sys

from penstock.blocking import connect


def simple(place: str) -> None:
    """Keuss' `mongo`: push, pop, reserve, ok and ko."""
    with connect(f"mongodb://{place}") as store:
        mail = store.queue("mail")
        mail.push_many([{"to": "ann"}, {"to": "tom"}])
        print("popped", mail.pop().payload)
        job = mail.reserve()
        job.nack()  # ko: it comes again, after a delay if there is one
        job = mail.reserve()
        job.ack()  # ok
        counters = mail.stats()
        print("tries", job.tries, {name: counters[name] for name in ("push", "pop", "reserve", "ack", "nack")})


def history(place: str) -> None:
    """Keuss' `ps-mongo`: ended jobs can be looked at for an hour."""
    with connect(f"mongodb+ps://{place}_history?ttl=3600") as store:
        mail = store.queue("mail")
        mail.push_many(["first", "second"])
        mail.pop()
        print("done", [job.payload for job in mail.peek(state="done")], "waiting", mail.size())


def groups(place: str) -> None:
    """Keuss' `stream-mongo`: each group of consumers gets each job."""
    url = f"mongodb+stream://{place}_groups?groups=billing,shipping"
    with connect(f"{url}&group=billing") as billing, connect(f"{url}&group=shipping") as shipping:
        billing.queue("orders").push({"order": 7})
        for name, store in (("billing", billing), ("shipping", shipping)):
            print(name, store.queue("orders").pop().payload)


def order(place: str) -> None:
    """Keuss' `intraorder`: the second job of a customer waits until the first has ended."""
    with connect(f"mongodb+intraorder://{place}_order?key=customer") as store:
        orders = store.queue("orders")
        orders.push_many([{"customer": name, "order": number} for number in (1, 2) for name in ("ann", "tom")])
        jobs = orders.reserve_many(10)
        print("at the same time", sorted((job.payload["customer"], job.payload["order"]) for job in jobs))
        orders.ack_many(jobs)
        print("then", sorted((job.payload["customer"], job.payload["order"]) for job in orders.reserve_many(10)))


def buckets(place: str) -> None:
    """Keuss' `bucket-mongo-safe`: a thousand jobs are one document."""
    with connect(f"mongodb+bucket://{place}_buckets") as store:
        clicks = store.queue("clicks")
        clicks.push_many(range(1000))
        jobs = clicks.reserve_many(100)
        print("acked", sum(clicks.ack_many(jobs)), "left", clicks.total())


def pipeline(place: str) -> None:
    """Keuss' `pl-mongo`: a job goes from queue to queue by one update. `penstock pipeline` does it with functions."""
    with connect(f"mongodb+pl://{place}_pipeline?pipeline=photos") as store:
        store.queue("new").push({"width": 800})
        job = store.queue("new").reserve()
        job.move("small", payload={"width": 400})
        print("moved", [job.payload for job in store.queue("small").peek()])


if __name__ == "__main__":
    for show in (simple, history, groups, order, buckets, pipeline):
        show(sys.argv[1])
