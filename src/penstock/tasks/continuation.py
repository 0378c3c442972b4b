"""What a worker does when a call of a workflow has ended: it starts what comes next.

Nobody watches over a workflow. Each of its jobs carries what is to be done after it (`Flow.then`, a list of frames),
and the worker does that before it acks the job: if it is killed in between, the job comes back and all of it is done
again, so every step must bear that.

- A call is pushed under the unique key `flow:ID:PATH`, so that a second push finds the first. Where the store moves
  jobs between queues in one step, and the next call of a chain is for another queue, the job is moved there and becomes
  that call: one step with the ack, and no key is needed.
- The record of a call, chain or group, `task:ID.PATH`, is written as often as need be.

A group is done when each of its members has a record: the set of those done, not a count, which would be wrong once a
member ran twice. To look at all of them after each member would cost n * n reads, so members meet in a binary tree:

    mark:ID.PATH:LEVEL:NUMBER    all members below that place are done; of level 0 it is the member's own record

A worker that has marked a place looks at the one beside it; if that is marked, too, it marks the place above both, and
goes on from there. Of two that end at the same time at least the one that marked last sees both marks: so one of them
gets to the top. Both may, and the unique key of what comes after the group lets one of their pushes through. A worker
that is killed on the way has not acked its job, whose next run goes the whole way again.

On a store without unique keys two could push what follows a group. There a job waits for the group from its beginning
(`penstock.join`): it looks at the top of the tree, with growing pauses, and alone pushes what comes next.

    then:ID.PATH                 the frames that come after a group, written before its members are pushed
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.codec import from_json, to_json
from penstock.errors import BadPayload, ConnectionLost, OutcomeUnknown
from penstock.queues.aio import Job
from penstock.queues.capabilities import Capability
from penstock.queues.dead_letter import Failure
from penstock.tasks.arguments import to_plain
from penstock.tasks.call import PreparedCall
from penstock.tasks.message import JOIN_TASK, Flow, Frame, Message, WorkflowPart
from penstock.tasks.results import FLOW_PREFIX, done_text, failed_text, is_done, key_of, plain_of
from penstock.tasks.workflow import KEEP_S, MEMBERS_MAX, FailedCall, prepared_call
from penstock.worker import Fail
from penstock.worker.outcomes import DONE, Action, Destination, Outcome
from penstock.worker.reporting import Outage

if TYPE_CHECKING:
    from penstock.tasks.app import App
    from penstock.tasks.task import Task

# How long the unique key of a call is kept after its end; a worker that stalled for longer pushes twice.
KEY_S = 24 * 3600.0
JOIN_PAUSE_S = 0.05  # between the first two looks at a group
JOIN_PAUSE_S_MAX = 5.0
OUTAGE_PAUSE_S = 5.0  # at most, between two attempts while a store is away


class Continuation:
    """Starts what comes next in workflows of one app."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def done(self, job: Job, message: Message, plain: Any) -> Outcome:
        """Go on after a call, with its result; return what becomes of its job."""
        flow = message.flow
        assert flow is not None
        if await self._app.client.is_stopped(flow.id):
            return DONE
        await self._record(flow, flow.at, plain)
        return await self._go_on(job, flow, plain, message.context)

    async def start(self, job: Job, message: Message) -> Outcome:
        """Start the first group of a workflow."""
        flow = message.flow
        if flow is None:
            raise Fail("a job that starts a workflow must have the key flow")
        if await self._app.client.is_stopped(flow.id):
            return DONE
        self._check_age(flow)
        return await self._go_on(job, flow, None, message.context)

    async def join(self, job: Job, message: Message) -> Outcome:
        """Look whether a group is done; if it is, go on after it."""
        flow, size = message.flow, message.args.get("size")
        if flow is None or not isinstance(size, int):
            raise Fail("a job that waits for a group must have the key flow and the argument size")
        _check_place(0, size)
        if await self._app.client.is_stopped(flow.id):
            return DONE
        self._check_age(flow)
        top = _mark(flow, flow.at, len(_levels(size)) - 1, 0)
        if not is_done((await self._records([top]))[0]):
            pause = min(JOIN_PAUSE_S_MAX, JOIN_PAUSE_S * 1.5 ** min(job.tries, 100))
            return Outcome(Action.NACK, pause, "its group is not done yet", is_wait=True)
        results = await self._results(flow, flow.at, size)
        flow.then = await self._then(flow, flow.at)
        return await self._go_on(job, flow, results, message.context, may_move=False)

    async def _go_on(
        self, job: Job, flow: Flow, plain: Any, context: dict[str, Any] | None, may_move: bool = True
    ) -> Outcome:
        """Do what the frames say, up to the next start."""
        then, climbed = list(flow.then), set[str]()
        while then:
            frame = then.pop(0)
            if frame.start is not None:
                jobs = await self._start(frame.start, plain, flow, then, context, job.queue.name)
                return await self._push(job, jobs, may_move)
            if frame.end is not None:
                await self._record(flow, frame.end, plain)
            elif frame.member is not None:
                # From here on there may be another one who does the same: what comes next must be pushed by key.
                may_move = False
                at, number, size = frame.member
                _check_new(at, climbed)
                _check_place(number, size)
                self._check_age(flow)
                if not await self._climb(flow, at, number, size):
                    return DONE
                then = await self._then(flow, at)
                if self._needs_join(then):
                    return DONE
                plain = await self._results(flow, at, size)
        return DONE

    # Starting.

    async def _start(
        self,
        node: WorkflowPart,
        plain: Any,
        flow: Flow,
        then: Sequence[Frame],
        context: dict[str, Any] | None,
        queue: str,
    ) -> list[PreparedCall]:
        """Return the jobs that a node is started with; `then` comes after it."""
        mine = Flow(flow.id, flow.keep, flow.until, node.at, list(then))
        if node.task is not None:
            return [prepared_call(node, plain, mine, self._app.now(), context)]
        end = Frame(end=node.at, on_failure=node.on_failure)
        if node.chain:
            rest = [*(Frame(start=one) for one in node.chain[1:]), end, *then]
            return await self._start(node.chain[0], plain, flow, rest, context, queue)
        if not node.group:
            raise Fail("a part of a workflow must have the key task, or parts in chain or group")
        members, after = node.group, [end, *then]
        # Before any member is pushed: the first of them may be done at once.
        text = to_json(msgspec.to_builtins(after))
        await self._app.client.store.put_value(f"then:{flow.id}.{node.at}", text, ttl=flow.keep)
        jobs = []
        for number, one in enumerate(members):
            frame = Frame(member=(node.at, number, len(members)))
            jobs += await self._start(one, plain, flow, [frame], context, queue)
        if self._needs_join(after):
            waits = Flow(flow.id, flow.keep, flow.until, node.at)
            message = Message(JOIN_TASK, {"size": len(members)}, context=context, flow=waits)
            jobs.append(PreparedCall(queue, message))
        return jobs

    def _needs_join(self, after: Sequence[Frame]) -> bool:
        """Whether a job must wait for a group, so that what comes after it is pushed once."""
        has_keys = Capability.UNIQUE in self._app.client.store.capabilities
        return not has_keys and any(frame.start is not None for frame in after)

    async def _push(self, job: Job, jobs: list[PreparedCall], may_move: bool) -> Outcome:
        client = self._app.client
        one = jobs[0]
        if may_move and len(jobs) == 1 and job.queue.name != one.queue and job.queue.moves_atomically(one.queue):
            self._app.note_pushed(one, job.id)
            return Outcome(Action.MOVE, destination=Destination(one.queue, one.message.payload(), **one.options))
        if Capability.UNIQUE in client.store.capabilities:
            for one in jobs:
                flow = one.message.flow
                assert flow is not None
                one.options |= {"unique": f"flow:{flow.id}:{flow.at}", "unique_for": KEY_S}
        for one, job_id in zip(jobs, await client.push_many(jobs), strict=True):
            self._app.note_pushed(one, job_id)
        return DONE

    # Groups.

    async def _climb(self, flow: Flow, at: str, number: int, size: int) -> bool:
        """Mark what is done in the tree of a group, from a member upwards; return whether all of it is."""
        for level, count in enumerate(_levels(size)):
            if level:
                await self._keep(flow, _mark(flow, at, level, number), done_text(None, self._app.now()))
            beside = number ^ 1
            if count > 1 and beside < count and not is_done((await self._records([_mark(flow, at, level, beside)]))[0]):
                return False
            number //= 2
        return True

    async def _results(self, flow: Flow, at: str, size: int) -> list[Any]:
        records = await self._records([_mark(flow, at, 0, number) for number in range(size)])
        if not all(map(is_done, records)):
            raise self._expired(flow)
        return [plain_of(one) for one in records if one is not None]

    async def _then(self, flow: Flow, at: str) -> list[Frame]:
        text = (await self._records([f"then:{flow.id}.{at}"]))[0]
        if text is None:
            raise self._expired(flow)
        return msgspec.convert(from_json(text), list[Frame])

    def _check_age(self, flow: Flow) -> None:
        if self._app.now() > flow.until:
            raise self._expired(flow)

    def _expired(self, flow: Flow) -> Fail:
        days = flow.keep / (24 * 3600)
        return Fail(f"what belongs to workflow {flow.id} is no longer kept: it must end within {days:g} days")

    # Failures.

    async def failed(self, job: Job, message: Message, failure: Failure, task: Task[Any, Any, Any] | None) -> None:
        """Start what is to be started when a job goes to the dead letters, and let the workflow fail."""
        outage = Outage(f"Ending the workflow of {job.queue.name} {job.id}", OUTAGE_PAUSE_S)
        while True:
            try:
                await self._failed(job, message, failure, task)
            except (ConnectionLost, OutcomeUnknown) as problem:
                await outage.wait_out(problem)  # a job that went now would leave its workflow without an end
            else:
                outage.recovered()
                return

    async def _failed(self, job: Job, message: Message, failure: Failure, task: Task[Any, Any, Any] | None) -> None:
        flow = message.flow
        call_id = message.id or job.id
        if flow is None:
            now = self._app.now()
            outer = Flow(FLOW_PREFIX + job.id, KEEP_S, now + KEEP_S)
        else:
            outer = flow
            if await self._app.client.is_stopped(flow.id):
                return
        about = FailedCall(message.task, call_id, job.queue.name, failure.text, failure.trace, message.args)
        plain = to_plain(about)
        nodes = [] if message.on_failure is None else [message.on_failure]
        if task is not None and task.settings.on_failure is not None:
            nodes.append(task.settings.on_failure.node(f"{outer.at}.task" if outer.at else "task"))
        if flow is not None:
            text = failed_text(failure.text, failure.trace, self._app.now())
            await self._keep_record(flow, flow.at, text)
            nodes += await self._fail_around(flow, text)
        for node in nodes:
            jobs = await self._start(node, plain, outer, [], message.context, job.queue.name)
            await self._push(job, jobs, may_move=False)

    async def _fail_around(self, flow: Flow, text: str) -> list[WorkflowPart]:
        """Keep the failure of all chains and groups around a call; return what they start."""
        nodes = []
        then, climbed = list(flow.then), set[str]()
        while then:
            frame = then.pop(0)
            if frame.end is not None:
                await self._keep_record(flow, frame.end, text)
                if frame.on_failure is not None:
                    nodes.append(frame.on_failure)
            elif frame.member is not None:
                try:
                    _check_new(frame.member[0], climbed)
                    then = await self._then(flow, frame.member[0])
                except Fail:  # what came after the group is forgotten; those who wait for the whole must hear of it
                    await self._keep_record(flow, "", text)
                    break
        return nodes

    # Records.

    async def _record(self, flow: Flow, at: str, plain: Any) -> None:
        try:
            text = done_text(plain, self._app.now())
        except BadPayload as problem:
            raise Fail(str(problem)) from problem
        await self._keep_record(flow, at, text)

    async def _keep_record(self, flow: Flow, at: str, text: str) -> None:
        await self._app.client.keep_in_flow(_record_key(flow, at), text, flow.keep)

    async def _keep(self, flow: Flow, key: str, text: str) -> None:
        await self._app.client.store.put_value(key, text, ttl=flow.keep)

    async def _records(self, keys: Sequence[str]) -> list[str | None]:
        return await self._app.client.records_in_flow(keys)


def _check_place(number: int, size: int) -> None:
    """Fail for a member that no group can have."""
    if not 0 <= number < size <= MEMBERS_MAX:
        raise Fail(f"a group must have 1 to {MEMBERS_MAX} members, numbered from 0, got number {number} of {size}")


def _check_new(at: str, climbed: set[str]) -> None:
    """Note the path of a group that is left upwards. Fail if it was left before: a body that no app has pushed."""
    if at in climbed:
        raise Fail(f"the frames of a workflow must lead out of it, and those of group {at!r} lead back into it")
    climbed.add(at)


def _record_key(flow: Flow, at: str) -> str:
    return key_of(f"{flow.id}.{at}" if at else flow.id)


def _mark(flow: Flow, at: str, level: int, number: int) -> str:
    """Return the key of a place in the tree of a group."""
    if level == 0:
        return _record_key(flow, f"{at}.{number}" if at else str(number))
    return f"mark:{flow.id}.{at}:{level}:{number}"


def _levels(size: int) -> list[int]:
    """Return how many places each level of a tree has, from the members to the one place at the top."""
    counts = [size]
    while counts[-1] > 1:
        counts.append((counts[-1] + 1) // 2)
    return counts
