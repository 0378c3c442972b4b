"""Random histories of one node on a simulated disk: it works, ends, starts again, and must know what it promised.

A history is several lives. A life is a row of random commands, each its own turn, until it ends: in order, by a kill,
or by a power loss, at any operation on the disk. Two things are known of it:

- what clients were told (`Told`), from the replies that really left;
- what the node was at the end of the last turn that is safe (`Picture`), taken from its memory.

After the next start the node must agree with both. A job that changed after the safe turn may be as before or as after.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

import hiredis

from penstock.broker.broker import Broker
from penstock.broker.clients import Client
from penstock.broker.config import Config
from penstock.broker.core.jobs import ACTIVE, DELIVERED, QUEUED, Job
from penstock.broker.core.node import Node
from penstock.sim.disk import Keep, SimDisk
from tests.unit.broker.harness import NODE_ID, LocalClient, LocalServer, LocalShell

QUEUES = ("red", "green", "blue%")
KEYS = ("k1", "k2")
POLICIES = ("always", "everysec", "no")
KEEPS: tuple[Keep, ...] = ("none", "some", "torn", "zeros", "all")
WALL_START_S = 1_700_000_000.0
LOG_LINES = 60  # shown of a history that failed
AOF = "disque.aof"
ROUNDING_MS = 3  # between the wall clock and a monotonic clock
EXPECTED_REFUSALS = ("PAUSED", "ERR Background", "TOOLATE", "NOJOB")


class PowerOff(BaseException):
    """The process ends here. Nothing in the node may catch it."""


class SimDesk(LocalServer):
    """A server on a disk that outlives it. Each start has a monotonic clock of its own."""

    def __init__(self, disk: SimDisk, wall_s: float, life: int, **directives: object) -> None:
        config = Config()
        for name, value in directives.items():
            assert hasattr(config, name), name
            setattr(config, name, value)
        self.now_s = 100.0 * (life * 7 % 5 + 1)
        self.wall_offset_s = wall_s - self.now_s
        self.disk = disk
        self.shell = LocalShell(self)
        self.gone: list[Client] = []
        self._entropy_blocks = life * 1_000_000
        self._clients = 0
        self.broker = Broker(config, self.shell, disk, self._clock, self._wall, self._entropy, NODE_ID)
        self.broker.node.cluster.myself.port = config.port

    def start(self) -> SimDesk:
        """Load the journal and begin to write it, as a server does."""
        persistence = self.broker.persistence
        for _ in persistence.begin_load(0):
            pass
        persistence.end_load()
        persistence.open()
        return self

    @property
    def wall_s(self) -> float:
        return self._wall()

    def _wall(self) -> float:
        return self.now_s + self.wall_offset_s

    def _entropy(self, count: int) -> bytes:
        self._entropy_blocks += 1
        return hashlib.shake_128(b"%d" % self._entropy_blocks).digest(count)


class Row(NamedTuple):
    """What must be known of a job after a start."""

    state: int
    delivered: bool
    nacks: int
    deliveries: int
    requeue_wall_ms: int  # of an active job; others begin a new period
    token: int
    claim: bytes


class Picture(NamedTuple):
    """A node at one moment."""

    rows: dict[bytes, Row]
    pauses: dict[bytes, int]
    order: dict[bytes, list[bytes]]


def jobs_of(node: Node) -> list[Job]:
    """All jobs; nearly all pages of the table are empty here, and a picture is taken every turn."""
    return [job for page in node.jobs.flat if page for job in page.values()]


def take_picture(broker: Broker) -> Picture:
    node = broker.node
    offset = node.wall_offset_ms
    rows = {}
    for job in jobs_of(node):
        if not job.rules.retry_s and job.flags & DELIVERED:
            continue  # delivered for the only time: shown, no more
        active = job.state == ACTIVE
        rows[job.id] = Row(
            job.state,
            bool(job.flags & DELIVERED),
            job.nacks,
            job.deliveries,
            job.requeue_at + offset if active and job.requeue_at else 0,
            job.token if active else 0,
            job.claim.key if job.claim is not None else b"",
        )
    queues = node.queues.by_name.values()
    pauses = {queue.name: queue.pause for queue in queues if queue.pause}
    order = {queue.name: [job.id for job in queue.oldest(queue.length)] for queue in queues if queue.length}
    return Picture(rows, pauses, order)


NOTHING = Picture({}, {}, {})


class Added(NamedTuple):
    """A job as its producer knows it."""

    queue: str
    body: bytes
    retry_s: int
    due_wall_s: float
    expires_wall_s: float


class History:
    """One history. `violations` are the sentences that turned out to be false."""

    def __init__(self, seed: object, policy: str, lives: int = 4, steps: int = 25) -> None:
        self.random = Random(f"{seed}")
        self.policy = policy
        self.lives = lives
        self.steps = steps
        self.disk = SimDisk()
        self.wall_s = WALL_START_S
        self.violations: list[str] = []
        # What clients were told.
        self.sent: dict[bytes, Added] = {}  # by body: also those without a reply
        self.jobs: dict[bytes, bytes] = {}  # id: body, of adds that were answered
        self.ended: set[bytes] = set()  # ids whose ack was answered
        self.ending: set[bytes] = set()  # ids whose ack was sent
        self.once: dict[bytes, int] = {}  # body: deliveries of an at-most-once job
        self.hurried: set[bytes] = set()  # ids that somebody queued before their time
        self.held: list[tuple[bytes, int]] = []  # fetched: id, token
        self.claimed: set[bytes] = set()  # ids under a key now
        self.repaused: set[bytes] = set()  # queues whose pause was set in this life
        self.ever_paused: set[str] = set()  # queues that took nothing for a while
        # What is safe.
        self.written, self.durable = NOTHING, NOTHING
        self.written_told: tuple[set[bytes], set[bytes]] = (set(), set())
        self.durable_told: tuple[set[bytes], set[bytes]] = (set(), set())
        # The end of the last life.
        self.base: Picture | None = None  # what must have survived it
        self.now = NOTHING  # what the node was in that moment
        self.told: tuple[set[bytes], set[bytes]] = (set(), set())
        self.end = ""
        self.sure = self.always = True
        self.safe_policy = policy
        self.operations = 0
        self.body_count = 0
        self.log: list[str] = []

    def run(self) -> list[str]:
        for life in range(self.lives):
            self.live(life)
            if self.violations:
                break
        else:
            self.drain()
        return self.violations

    def claim_false(self, sentence: str) -> None:
        self.violations.append(sentence + "\n    " + "\n    ".join(self.log[-LOG_LINES:]))

    # One life

    def choose_end(self, life: int) -> tuple[int, str]:
        """Return after how many operations on the disk a life ends if it ends early, and how."""
        end = self.random.choice(("kill", "kill", "power", "power", "power", "order", "rewrite"))
        return self.random.randint(0, 6 * self.steps), end

    def live(self, life: int) -> None:
        server = SimDesk(
            self.disk,
            self.wall_s,
            life,
            appendfsync=self.policy,
            aof_load_truncated=True,
            auto_aof_rewrite_percentage=0,
        )
        self.server = server
        self.clients: list[LocalClient] = []
        self.waiting: list[LocalClient] = []
        self.started = False
        self.log.append(f"-- life {life} {self.policy}")
        left, end = self.choose_end(life)

        def count_down(kind: str, name: str) -> None:
            nonlocal left
            left -= 1
            self.operations += 1
            if left < 0 and end in ("kill", "power"):
                raise PowerOff

        try:
            if life and self.random.random() < 0.1:
                self.disk.before = count_down
            server.start()
            self.started = True
            self.check_start()
            self.take_safe(synced=True)
            self.disk.before = count_down
            self.clients = [server.client() for _ in range(2)]
            for _ in range(self.steps):
                self.step()
            self.disk.before = lambda kind, name: None
            if end in ("order", "rewrite"):
                self.log.append(f"stop in {end}")
                assert server.broker.persistence.close(rewrite=end == "rewrite")
                self.take_safe(synced=True)
        except PowerOff:
            self.log.append("cut off")
        self.end_life(end)

    def end_life(self, end: str) -> None:
        """What is left of the disk, and of what was promised."""
        random, server = self.random, self.server
        self.collect_waiting()
        self.disk.before = lambda kind, name: None
        self.wall_s = server.wall_s + random.choice((0.0, 0.3, 4.0, 40.0))
        if end == "power":
            keep = random.choice(KEEPS)
            self.log.append(f"power loss, {keep} left")
            self.disk = self.disk.crash(random, keep)
        else:
            self.log.append("killed" if end == "kill" else "ended")
            self.disk = self.disk.process_crash()
        if self.started:
            self.now = take_picture(server.broker)
            self.end = end
            self.always = self.safe_policy == "always"
            self.sure = end != "power" or (self.always and server.broker.config.appendfsync == "always")
            self.base, self.told = self.written, self.written_told
        elif end == "power":  # before it had begun: what was promised in the life before may be less safe now
            self.end, self.always, self.sure = end, False, False
        if end == "power":
            self.base, self.told = self.durable, self.durable_told
        if random.random() < 0.2:
            self.policy = random.choice(POLICIES)

    def take_safe(self, synced: bool) -> None:
        """The turn is over, and all of it written; perhaps synced, too."""
        self.written = take_picture(self.server.broker)
        self.written_told = (set(self.jobs), set(self.ended))
        self.safe_policy = self.server.broker.config.appendfsync
        if synced:
            self.durable, self.durable_told = self.written, self.written_told

    def choose_step(self) -> str:
        kinds = (
            ("add", 6), ("add_many", 1), ("get", 5), ("lease", 2), ("wait", 1), ("ack", 3), ("nack", 2), ("claim", 2),
            ("end_claim", 1), ("move", 2), ("working", 1), ("pause", 1), ("time", 2), ("settle", 1), ("rewrite", 1),
            ("rewrite_step", 4), ("policy", 0.3), ("flush_all", 0.05),
        )  # fmt: skip
        return self.random.choices([kind for kind, _ in kinds], [weight for _, weight in kinds])[0]

    def step(self) -> None:
        kind = self.choose_step()
        self.log.append(kind)
        getattr(self, "do_" + kind)()
        self.collect_waiting()
        self.take_safe(synced=self.server.broker.config.appendfsync == "always")

    # Commands. What they were told is noted from the bytes that left, also where the node ended right after.

    def ask(self, words: list[Any], note: Callable[[Any], None] = lambda reply: None) -> None:
        self.log.append("  " + " ".join(map(str, words)))
        client = self.random.choice(self.clients)
        try:
            client.send(words)
        finally:
            for reply in client.pushed():
                if not isinstance(reply, hiredis.ReplyError):
                    note(reply)
                elif not str(reply).startswith(EXPECTED_REFUSALS):
                    self.claim_false(f"{words} was refused: {reply}")

    def new_job(self) -> tuple[str, bytes, list[Any]]:
        random = self.random
        self.body_count += 1
        queue, body = random.choice(QUEUES), b"body %d %%" % self.body_count
        retry_s = random.choice((0, 0, 2, 30, 300))
        delay_s = random.choice((0, 0, 0, 3, 30))
        ttl_s = random.choice((60, 600, 86400))
        wall_s = self.server.wall_s
        self.sent[body] = Added(queue, body, retry_s, wall_s + delay_s, wall_s + ttl_s)
        options = ["RETRY", retry_s, "TTL", ttl_s]
        if delay_s:
            options += ["DELAY", delay_s]
        return queue, body, options

    def do_add(self) -> None:
        queue, body, options = self.new_job()
        self.ask(["ADDJOB", queue, body, 0, *options], lambda job_id: self.note_added([job_id], [body]))

    def do_add_many(self) -> None:
        queue, first, options = self.new_job()
        bodies = [first]
        for _ in range(2):
            self.body_count += 1
            bodies.append(b"body %d" % self.body_count)
            self.sent[bodies[-1]] = self.sent[first]._replace(body=bodies[-1])
        self.ask(["ADDJOBS", queue, 0, *options, "BODIES", *bodies], lambda ids: self.note_added(ids, bodies))

    def note_added(self, ids: list[bytes], bodies: list[bytes]) -> None:
        self.jobs.update(zip(ids, bodies, strict=True))

    def do_get(self) -> None:
        self.ask(
            ["GETJOB", "NOHANG", "COUNT", self.random.randint(1, 3), "FROM", *self.some_queues()], self.note_fetched
        )

    def do_lease(self) -> None:
        lease_ms = self.random.choice((1, 1500, 20_000))
        words = ["GETJOB", "NOHANG", "COUNT", 2, "LEASE", lease_ms, "FROM", *self.some_queues()]
        self.ask(words, self.note_fetched)

    def do_wait(self) -> None:
        """Somebody waits for a job, and perhaps gets it turns later."""
        client = self.server.client()
        self.waiting.append(client)
        client.send(["GETJOB", "TIMEOUT", 5000, "FROM", self.random.choice(QUEUES)])

    def collect_waiting(self) -> None:
        for client in self.waiting:
            for reply in client.pushed():
                self.note_fetched(reply)

    def some_queues(self) -> list[str]:
        return self.random.sample(QUEUES, self.random.randint(1, 3))

    def note_fetched(self, jobs: list[list[Any]] | None) -> None:
        for _, job_id, body, *rest in jobs or ():
            self.held.append((job_id, int(rest[0]) if len(rest) == 1 else 0))
            self.log.append(f"    got {body!r} {job_id[11:17]!r}")
            known = self.sent.get(body)
            if known is None:
                self.claim_false(f"a job out of thin air: {body!r}")
                continue
            if not known.retry_s:
                self.once[body] = self.once.get(body, 0) + 1
                if self.once[body] > 1:
                    self.claim_false(f"{body!r} was to be delivered at most once, and came again")
            if job_id not in self.hurried and self.server.wall_s < known.due_wall_s - ROUNDING_MS / 1000:
                self.claim_false(f"{body!r} came before its delay was over")

    def do_ack(self) -> None:
        if not self.held:
            return
        job_id, token = self.held.pop(self.random.randrange(len(self.held)))
        if token:
            self.ending.add(job_id)
            self.ask(["ACKLEASE", job_id, token], lambda words: words == [b"OK"] and self.ended.add(job_id))
        else:
            command = self.random.choice(("ACKJOB", "FASTACK", "DELJOB"))
            self.ending.add(job_id)
            self.ask([command, job_id], lambda count: self.ended.add(job_id))

    def do_nack(self) -> None:
        if not self.held:
            return
        job_id, token = self.random.choice(self.held)
        after_ms = self.random.choice((0, 2000))
        self.ask(["NACKLEASE", after_ms, job_id, token] if token else ["NACK", job_id])
        self.hurried.add(job_id)

    def do_claim(self) -> None:
        words = ["CLAIM", self.random.choice(KEYS), "COUNT", 2, "LEASE", 15_000, "FROM", *self.some_queues()]
        self.ask(words, self.note_claimed)

    def note_claimed(self, jobs: list[list[Any]]) -> None:
        new = {job_id for _, job_id, *_ in jobs} - self.claimed
        self.note_fetched([job[:3] for job in jobs if job[1] in new])
        self.claimed |= new

    def do_end_claim(self) -> None:
        key = self.random.choice(KEYS)
        word = self.random.choice(("ACKCLAIM", "NACKCLAIM", "EXTENDCLAIM"))
        claim = self.server.broker.node.claims.get(key.encode())
        ids = set(claim.jobs) if claim is not None else set()
        if word == "ACKCLAIM":
            self.claimed -= ids
        elif word == "NACKCLAIM":  # one that is delivered at most once can't go back, and stays
            self.claimed -= {job_id for job_id in ids if claim is not None and claim.jobs[job_id].rules.retry_s}
        if word == "ACKCLAIM":
            self.ending |= ids
            self.ask([word, key], lambda count: self.ended.update(ids))
        else:
            self.ask([word, key, 9000] if word == "EXTENDCLAIM" else [word, key])

    def do_move(self) -> None:
        if self.jobs:
            job_id = self.random.choice(sorted(self.jobs))
            self.hurried.add(job_id)
            self.ask([self.random.choice(("DEQUEUE", "ENQUEUE")), job_id])

    def do_working(self) -> None:
        if self.held:
            self.ask(["WORKING", self.random.choice(self.held)[0]])

    def do_pause(self) -> None:
        queue, state = self.random.choice(QUEUES), self.random.choice(("in", "out", "all", "none", "none", "none"))
        if state in ("in", "all"):
            self.ever_paused.add(queue)
        self.repaused.add(queue.encode())
        self.ask(["PAUSE", queue, state])

    def do_flush_all(self) -> None:
        ids = {job.id for job in self.server.broker.node.jobs}
        self.ending |= ids
        self.claimed.clear()
        self.ask(["DEBUG", "FLUSHALL"], lambda reply: self.ended.update(ids))

    def do_time(self) -> None:
        self.pass_time(self.random.choice((0.05, 0.4, 1.1, 3.2)))

    def pass_time(self, seconds: float) -> None:
        self.server.advance(seconds)
        self.claimed &= {job.id for job in jobs_of(self.server.broker.node) if job.claim is not None}

    def do_settle(self) -> None:
        """With everysec, what was there before is on the disk some two seconds later."""
        picture, told = take_picture(self.server.broker), (set(self.jobs), set(self.ended))
        self.pass_time(2.5)
        if self.server.broker.config.appendfsync == "everysec":
            self.durable, self.durable_told = picture, told

    def do_rewrite(self) -> None:
        self.ask(["BGREWRITEAOF"])

    def do_rewrite_step(self) -> None:
        self.server.broker.persistence.step()

    def do_policy(self) -> None:
        self.policy = self.random.choice(POLICIES)
        self.ask(["CONFIG", "SET", "appendfsync", self.policy])

    # After a start

    def check_start(self) -> None:
        """Compare the node with what it was, and with what clients know."""
        restored = take_picture(self.server.broker)
        node = self.server.broker.node
        self.claimed = {job.id for job in node.jobs if job.claim is not None}
        self.held = [(job_id, token) for job_id, token in self.held if job_id in node.jobs]
        if self.base is None:
            return
        for job in node.jobs:
            self.check_known(job)
        for job_id in set(self.base.rows) & set(self.now.rows):
            if self.base.rows[job_id] == self.now.rows[job_id]:
                self.check_same(job_id, self.base.rows[job_id], restored.rows.get(job_id))
        self.check_told(node)
        self.check_order(restored)
        for name in set(self.base.pauses) | set(self.now.pauses):
            before, after, found = (picture.pauses.get(name, 0) for picture in (self.base, self.now, restored))
            if before == after != found and (self.sure or name not in self.repaused):
                self.claim_false(f"the pause of {name!r} was {before}, and is {found}")
        self.repaused.clear()

    def check_known(self, job: Job) -> None:
        known = self.sent.get(job.body)
        if known is None or known.queue.encode() != job.queue or known.retry_s != job.rules.retry_s:
            self.claim_false(f"a job out of thin air: {job.body!r} in {job.queue!r}")
        elif not known.retry_s and self.once.get(job.body) and not job.flags & DELIVERED:
            self.claim_false(f"{job.body!r} was delivered, may be delivered but once, and would be again")

    def is_over(self, body: bytes) -> bool:
        return self.sent[body].expires_wall_s <= self.wall_s + 1

    def check_same(self, job_id: bytes, before: Row, after: Row | None) -> None:
        body = self.jobs.get(job_id, b"")
        known = self.sent.get(body)
        if known is None or self.is_over(body):
            return
        now_ms = int(self.wall_s * 1000)
        if after is None:
            if not known.retry_s and not self.sure:
                return  # perhaps delivered: not again
            self.claim_false(f"{body!r} is lost: {before}")
            return
        if before.token and before.requeue_wall_ms <= now_ms:
            before = before._replace(token=0, claim=b"")  # its lease has ended meanwhile
        if not known.retry_s:
            before = before._replace(requeue_wall_ms=0)
            after = after._replace(requeue_wall_ms=0)
            if before.state == ACTIVE and after.state == QUEUED and known.due_wall_s <= self.wall_s:
                return  # its delay ended meanwhile
        if known.queue in self.ever_paused and after.requeue_wall_ms <= min(now_ms, before.requeue_wall_ms):
            return  # a pause held its requeue back: it is due
        if before.state == QUEUED and not before.delivered and after.state == ACTIVE:
            if after.requeue_wall_ms <= now_ms:
                return  # its delay was over: it is queued again with the first tick
        if abs(before.requeue_wall_ms - after.requeue_wall_ms) <= ROUNDING_MS:
            after = after._replace(requeue_wall_ms=before.requeue_wall_ms)
        if before != after:
            self.claim_false(f"{body!r} was {before}, and is {after}")

    def check_told(self, node: Any) -> None:
        added, ended = self.told if self.end == "power" and not self.always else (set(self.jobs), set(self.ended))
        for job_id in added - self.ending:
            body = self.jobs[job_id]
            if job_id in node.jobs or self.is_over(body):
                continue
            if self.sent[body].retry_s:
                self.claim_false(f"{body!r} was acknowledged, and is lost")
        for job_id in ended:
            if job_id in node.jobs:
                self.claim_false(f"{self.jobs.get(job_id)!r} was acked, and is back")
        if self.end == "power" and not self.always:
            # What was told since the last sync may be forgotten.
            self.ended &= ended | {job_id for job_id in self.ended if job_id not in node.jobs}
            self.ending = {job_id for job_id in self.ending if job_id not in node.jobs}
            self.jobs = {
                job_id: body for job_id, body in self.jobs.items() if job_id in node.jobs or job_id in self.ending
            }

    def check_order(self, restored: Picture) -> None:
        """Jobs that waited before and wait now do so in the same order."""
        for name, order in self.base.order.items():
            both = set(order) & set(restored.order.get(name, ()))
            before = [job_id for job_id in order if job_id in both]
            after = [job_id for job_id in restored.order.get(name, ()) if job_id in both]
            if before != after:
                self.claim_false(f"{name!r} has another order than before")

    # The end

    def drain(self) -> None:
        """When all is quiet, every job that was promised and is not finished can be had."""
        self.server = server = SimDesk(
            self.disk, self.wall_s, 99, appendfsync=self.policy, auto_aof_rewrite_percentage=0
        )
        server.start()
        self.check_start()
        self.clients, self.waiting = [server.client()], []
        for name in QUEUES:
            self.ask(["PAUSE", name, "none"])
        wanted = {}
        for job_id, body in self.jobs.items():
            known = self.sent[body]
            if job_id not in self.ending and known.retry_s and known.expires_wall_s > server.wall_s + 500:
                wanted[job_id] = body
        for _ in range(40):
            self.ask(["GETJOB", "NOHANG", "COUNT", 1000, "FROM", *QUEUES], self.note_fetched)
            for job_id, _ in self.held:
                wanted.pop(job_id, None)
                self.ask(["FASTACK", job_id])
            self.held.clear()
            if not wanted:
                return
            server.now_s += 10
            server.advance(0.3)
        self.claim_false(f"never delivered: {sorted(wanted.values())}")


class ScriptedHistory(History):
    """One life of given steps, cut off at a given operation, and the one after it."""

    def __init__(self, steps: str, policy: str, cut_at: int, end: str, seed: object = 0) -> None:
        self.script = steps.split()
        self.cut_at = cut_at
        self.first_end = end
        super().__init__(f"scripted {seed}", policy, lives=2, steps=len(self.script))

    def choose_end(self, life: int) -> tuple[int, str]:
        self.steps = 0 if life else len(self.script)
        return (1000, "order") if life else (self.cut_at, self.first_end)

    def choose_step(self) -> str:
        at, self.at = self.at, self.at + 1
        return self.script[at]

    at = 0
