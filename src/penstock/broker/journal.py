"""The journal: what must survive a crash of the process.

Two files, and a third with their checksums (`checksums.py`). The first is the original's append-only file, so that an
original node loads ours and we load theirs:

  LOADJOB <record>            a job is held here (wire.record, storage form)
  DELJOB <id>                 it is finished, deleted, or delivered for the only time

The second, `<name>.state`, holds what the original never writes down. It sets the state of jobs that the first file
brings back; the last record of a job wins, and records of jobs that are gone mean nothing:

  STATE <id> <packed> [key]   state, flags, counters, requeue time, lease token, tries; the key of its claim
  HELD <id> <nodes>           more nodes may hold the job than its record says
  PAUSE <queue> <flags>       a queue's pause state
  START <boot id> <fsync> <n> from here on a process writes, in this run of the machine, with this policy (empty and
                              `off` if nothing is written any more while the node goes on); its tokens begin with n
  CLEAN                       it stopped in order; nothing is missing

START and CLEAN tell the next start what it can rely on, so they are synced at once whatever the policy, and written
only when the file of jobs is synced.

Records are collected while commands run and written together before the replies are sent (`flush`), and synced too if
appendfsync is `always`. If that fails, the replies are dropped, and writes are refused until it works again. A failed
sync may have lost what was written before, so only a complete rewrite repairs it.

A rewrite runs in small steps between commands, page by page of the job table. Changes meanwhile go to the old and the
new files, in order, so a page may be written before or after a change with the same result.
"""

from __future__ import annotations

import struct
from itertools import islice
from typing import Final

from penstock.broker.checksums import JOBS, STATES, SUM_SUFFIX, Checksums, Tails, unsummed
from penstock.broker.core.acks import is_handover
from penstock.broker.core.jobs import ACK_NOTED, ACKED, ACTIVE, AHEAD, DELIVERED, QUEUED, STORED_FLAGS, Job
from penstock.broker.core.node import Node
from penstock.broker.disk import Disk, File
from penstock.wire.record import JobRecord, record_template

# state, flags, nacks, deliveries, requeue time (wall ms, 0 = never), token, ms that were left until the requeue time,
# tries
STATE: Final = struct.Struct("<BBHHQQIH")
AHEAD_STORED: Final = 128  # of the flags: work on the job has not begun under its lease
LEFT_MS_MAX: Final = (1 << 32) - 1  # and more: 49 days
EXPIRES_S_MAX: Final = (1 << 32) - 1  # unix time: a job that would live beyond the year 2106 ends there
STATE_SUFFIX: Final = ".state"
REWRITE_PREFIX: Final = "temp-rewrite-"
SYNC_MS: Final = 1000  # appendfsync everysec
RETRY_MS: Final = 1000  # a failed write is tried again after this
TEMPLATES_MAX: Final = 1024  # records kept ready, one for each length of body met in this second
REWRITE_JOBS: Final = 256  # written in one step: about a millisecond
REWRITE_SYNC_BYTES: Final = 32 << 20  # the new file is synced in pieces, so that the last sync is short

ALWAYS: Final = "always"
EVERYSEC: Final = "everysec"
NO: Final = "no"
OFF: Final = b"off"


def file_names(name: str) -> tuple[str, str, str]:
    """Return the names of the files of a journal: jobs, states, checksums."""
    return name, name + STATE_SUFFIX, name + SUM_SUFFIX


def _command(*words: bytes) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)


class Journal:
    """Writes the journal of one node. `failure` says why it can't, while it can't."""

    def __init__(self, node: Node, disk: Disk, name: str, policy: str, tails: Tails | None = None) -> None:
        """`tails` is what a load has read of both files that has no checksum yet."""
        self.node = node
        self.disk = disk
        self.name = name
        self.failure = ""
        self._policy = policy
        self._jobs_file: File = disk.append(name)
        self._state_file: File = disk.append(name + STATE_SUFFIX)
        sizes = (self._jobs_file.size, self._state_file.size)
        if tails is None or (tails[JOBS][-1].end, tails[STATES][-1].end) != sizes:
            tails = ([unsummed(sizes[JOBS])], [unsummed(sizes[STATES])])
        self._sums = Checksums(disk, name, tails)
        self._jobs: list[bytes] = []
        self._states: list[bytes] = []
        self._unwritten = [b"", b""]  # what a short write left over, by file
        self._sync_failed = False
        self._unsynced = False
        self._marking = False  # what was collected must be synced, the jobs' file first
        self._synced_ms = node.now_ms
        self._retry_ms = 0
        self._template_key: tuple[object, ...] = ()
        self._templates: dict[int, bytes] = {}  # by length of the body
        self._template_from = self._template_until = 0
        self.base_bytes = self._jobs_file.size
        self.rewrite: Rewrite | None = None
        self.delayed_syncs = 0

    # The node's side: one record each, collected.

    def added(self, jobs: list[Job]) -> None:
        """Note new jobs. Those added alike differ in three fields only, so the rest of their record is kept ready."""
        first = jobs[0]
        key = (first.queue, first.rules, first.state, first.flags, first.holders)
        if key != self._template_key or not self._template_from <= first.expires_at <= self._template_until:
            self._templates = {}
            self._template_key = key
            # All expiries in one second of the wall clock, rounded up, are stored alike.
            offset = self.node.wall_offset_ms
            self._template_until = (first.expires_at + offset + 999) // 1000 * 1000 - offset
            self._template_from = self._template_until - 999
        templates, append = self._templates, self._jobs.append
        for job in jobs:
            body = job.body
            template = templates.get(len(body))
            if template is None:
                if len(templates) >= TEMPLATES_MAX:
                    templates.clear()
                template = templates[len(body)] = _load_template(self.record(job))
            append(template % (job.id, job.ctime.to_bytes(8, "little"), body))

    def removed(self, job_id: bytes) -> None:
        """Note the end of a job."""
        self._jobs.append(b"*2\r\n$6\r\nDELJOB\r\n$40\r\n%b\r\n" % job_id)

    def delivered(self, jobs: list[Job]) -> None:
        """Note that jobs go out to a client."""
        node = self.node
        for job in jobs:
            if job.rules.retry_s:
                self._states.append(_state_command(job, node))
            else:
                self.removed(job.id)

    def undelivered(self, job: Job) -> None:
        """Note that a job noted as delivered never went out, and waits in its queue again."""
        if not job.rules.retry_s:  # its delivery was noted as its end
            record = _load_template(self.record(job))
            self._jobs.append(record % (job.id, job.ctime.to_bytes(8, "little"), job.body))
        self._states.append(_state_command(job, self.node))

    def changed(self, job: Job) -> None:
        """Note where a job is now."""
        self._states.append(_state_command(job, self.node))
        if not job.rules.retry_s:
            self._marking = True  # queued by hand: its time no longer tells whether it may have been delivered

    def held(self, job: Job) -> None:
        """Note which nodes may hold a job."""
        self._states.append(_held_command(job))

    def paused(self, name: bytes, pause: int) -> None:
        """Note a queue's pause state."""
        self._states.append(_command(b"PAUSE", name, b"%d" % pause))

    def record(self, job: Job) -> JobRecord:
        """Return a job in the form it is stored in."""
        return JobRecord(
            id=job.id,
            state=QUEUED if job.state == QUEUED else ACTIVE,
            gc_retry=0,
            flags=job.flags & STORED_FLAGS,
            replicate=job.rules.replicate,
            expires=min((job.expires_at + self.node.wall_offset_ms + 999) // 1000, EXPIRES_S_MAX),
            ctime=job.ctime,
            delay=job.rules.delay_s,
            retry=job.rules.retry_s,
            nacks=job.nacks,
            deliveries=job.deliveries,
            queue=job.queue,
            body=job.body,
            nodes=tuple(sorted(job.holders.delivered)),
        )

    # The shell's side.

    @property
    def size(self) -> int:
        """Bytes of the first file."""
        return self._jobs_file.size

    @property
    def pending(self) -> bool:
        """Whether there is something to flush."""
        return bool(self._jobs or self._states)

    @property
    def pending_jobs(self) -> bool:
        """Whether jobs came or went that are not written yet."""
        return bool(self._jobs)

    @property
    def pending_bytes(self) -> int:
        """Bytes that wait to be written."""
        return sum(map(len, self._jobs)) + sum(map(len, self._states)) + sum(map(len, self._unwritten))

    @property
    def syncing(self) -> bool:
        """Whether what was written has not reached the disk yet."""
        return self._unsynced

    @property
    def policy(self) -> str:
        """When to sync: always, everysec or no."""
        return self._policy

    @policy.setter
    def policy(self, policy: str) -> None:
        self._policy = policy
        self.start()

    def start(self) -> None:
        """Note that from here on everything is written, with this policy."""
        self._mark(*self.start_words(self.disk.boot_id(), self._policy.encode()))

    def start_words(self, boot_id: bytes, policy: bytes) -> tuple[bytes, ...]:
        """Return the words of a START."""
        if not self.node.token_epoch:
            self.node.begin_tokens(0)
        return b"START", boot_id, policy, b"%d" % self.node.token_epoch

    def _mark(self, *words: bytes) -> None:
        self._states.append(_command(*words))
        self._marking = True

    def flush(self) -> bool:
        """Write what was collected, and sync it if the policy says so; False if that failed."""
        jobs, states = b"".join(self._jobs), b"".join(self._states)
        self._jobs.clear()
        self._states.clear()
        if self.rewrite is not None:
            self.rewrite.follow(jobs, states)
        if self._sync_failed:  # what comes now is of no use to the old files: the next rewrite takes it from memory
            return False
        if self._unwritten[0] or self._unwritten[1]:
            jobs, states = self._unwritten[0] + jobs, self._unwritten[1] + states
            self._unwritten = [b"", b""]
        try:
            while jobs:
                taken = self._jobs_file.write(jobs)
                self._sums.add(JOBS, jobs[:taken])
                jobs = jobs[taken:]
                self._unsynced = True
            if self._marking and not self._sync(self._jobs_file):
                return False
            while states:
                taken = self._state_file.write(states)
                self._sums.add(STATES, states[:taken])
                states = states[taken:]
                self._unsynced = True
        except OSError as error:
            self._unwritten = [jobs, states]
            self._fail(error)
            return False
        if self._unsynced and (self._policy == ALWAYS or self._marking):
            if not self._sync(self._state_file, self._jobs_file):
                return False
            if self._marking:  # seldom; with `always` the cron does it, not each turn
                self._record_synced()
            self._unsynced = self._marking = False
        self.failure = ""
        return True

    def _record_synced(self) -> None:
        """Record the checksums of all that was written: it is on the disk."""
        self._sums.cut()
        self._sums.commit()

    def _sync(self, *files: File) -> bool:
        try:
            for file in files:
                file.sync()
        except OSError as error:
            self._sync_failed = True
            self._sums.drop()
            self._fail(error)
            return False
        self._synced_ms = self.node.now_ms
        return True

    def _fail(self, error: OSError) -> None:
        self.failure = error.strerror or str(error)
        self._retry_ms = self.node.now_ms + RETRY_MS

    def cron(self) -> None:
        """Ten times a second: retry a failed write, start the sync of this second, see how the last one ended."""
        now_ms = self.node.now_ms
        if self.failure and now_ms >= self._retry_ms:
            self._retry_ms = now_ms + RETRY_MS
            self.flush()
        try:
            done = self._jobs_file.sync_done() & self._state_file.sync_done()
        except OSError as error:
            self._sync_failed = True
            self._sums.drop()
            self._fail(error)
            return
        if done and not self._sync_failed:
            self._sums.commit()
            if self._policy == ALWAYS and not self._unsynced:
                self._record_synced()
        if self._policy != EVERYSEC or not self._unsynced or now_ms - self._synced_ms < SYNC_MS:
            return
        if not done:
            self.delayed_syncs += 1
            return
        self._unsynced = False
        self._synced_ms = now_ms
        if not self._sync_failed:
            self._sums.cut()
        self._state_file.begin_sync()
        self._jobs_file.begin_sync()

    def begin_rewrite(self) -> None:
        """Start a rewrite; `step_rewrite` does the work."""
        self.rewrite = Rewrite(self)

    def step_rewrite(self) -> bool:
        """Do a little of a rewrite under way; True when there is nothing more to do, for good or bad."""
        rewrite = self.rewrite
        if rewrite is None:
            return True
        self.flush()  # if the old files can't be written, the new ones still take what comes
        try:
            if not rewrite.step():
                return False
            rewrite.finish()
        except OSError as error:
            self.rewrite = None
            rewrite.abandon()
            if rewrite.replacing:  # nobody knows which files have their names now
                self._sync_failed = True
                self._fail(error)
            raise
        self._close_files()
        self._jobs_file, self._state_file, self._sums = rewrite.jobs_file, rewrite.state_file, rewrite.sums
        self._unwritten = [b"", b""]
        self._sync_failed = self._marking = False
        self.failure = ""
        self.base_bytes = self._jobs_file.size
        self._unsynced = False
        self.rewrite = None
        return True

    def stop_rewrite(self) -> None:
        """Abandon a rewrite, if one is under way."""
        if self.rewrite is not None:
            self.rewrite.abandon()
            self.rewrite = None

    def finish(self) -> bool:
        """Make everything safe and say that it is complete, before the node stops; False if that failed."""
        self._mark(b"CLEAN")
        if self.flush():
            return True
        self.start()  # the node goes on after all
        return False

    def leave(self) -> bool:
        """Make everything safe and say that nothing more will be written, while the node goes on."""
        self._mark(*self.start_words(b"", OFF))
        return self.flush()

    def close(self) -> None:
        """Let go of the files."""
        self.stop_rewrite()
        self._close_files()

    def _close_files(self) -> None:
        self._jobs_file.close()
        self._state_file.close()
        self._sums.close()


class Rewrite:
    """New files with only what is alive, while the old ones go on."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.disk = journal.disk
        self.names = file_names(journal.name)
        self.jobs_file = self.disk.append(REWRITE_PREFIX + self.names[0], fresh=True)
        self.state_file = self.disk.append(REWRITE_PREFIX + self.names[1], fresh=True)
        self.sums = Checksums(self.disk, REWRITE_PREFIX + journal.name, ([unsummed(0)], [unsummed(0)]), fresh=True)
        self.started_ms = journal.node.now_ms
        # A page at a time is copied, so that jobs may come and go meanwhile: what is gone when its turn comes is left
        # out.
        self._alive = (job for page in journal.node.jobs.flat for job in list(page.values()))
        self._templates: dict[tuple[object, ...], bytes] = {}
        self._synced_bytes = 0
        self._written = False
        self._failure: OSError | None = None
        self.replacing = False
        start = _command(*journal.start_words(self.disk.boot_id(), journal.policy.encode()))
        pauses = [
            _command(b"PAUSE", queue.name, b"%d" % queue.pause)
            for queue in journal.node.queues.by_name.values()
            if queue.pause
        ]
        self.follow(b"", start + b"".join(pauses))

    def follow(self, jobs: bytes, states: bytes) -> None:
        """Take what was also written to the old files."""
        try:
            _write_all(self.jobs_file, jobs)
            _write_all(self.state_file, states)
            self.sums.add(JOBS, jobs)
            self.sums.add(STATES, states)
        except OSError as error:  # raised by the next step: it ends the rewrite, not the command under way
            self._failure = error

    def step(self) -> bool:
        """Write some jobs; True once all are in the new files and synced."""
        if self._failure is not None:
            raise self._failure
        if not (self.jobs_file.sync_done() & self.state_file.sync_done()):
            return False
        if self._written:
            return True
        jobs: list[bytes] = []
        states: list[bytes] = []
        looked_at = 0
        for job in islice(self._alive, REWRITE_JOBS):
            looked_at += 1
            if is_kept(job):
                jobs.append(self._record(job))
                if job.state != QUEUED or job.tries:
                    states.append(_state_command(job, self.journal.node))
        self._written = looked_at < REWRITE_JOBS
        self.follow(b"".join(jobs), b"".join(states))
        if self._written or self.jobs_file.size - self._synced_bytes > REWRITE_SYNC_BYTES:
            self._synced_bytes = self.jobs_file.size
            self.jobs_file.begin_sync()
            self.state_file.begin_sync()
        return False

    def _record(self, job: Job) -> bytes:
        """Return a job's LOADJOB command. Jobs that were added together differ little, so the rest is kept ready."""
        expires_s = (job.expires_at + self.journal.node.wall_offset_ms) // 1000
        counters = (job.state, job.flags, job.nacks, job.deliveries)
        key = (job.queue, job.rules, len(job.body), expires_s, counters, job.holders)
        template = self._templates.get(key)
        if template is None:
            if len(self._templates) >= TEMPLATES_MAX:
                self._templates.clear()
            template = self._templates[key] = _load_template(self.journal.record(job))
        return template % (job.id, job.ctime.to_bytes(8, "little"), job.body)

    def finish(self) -> None:
        """Put the new files in the place of the old ones. Any mix of old and new of the two brings back the same.

        They are synced whatever the policy: the old ones may be safe already, and must not be replaced by less. The
        old checksums go first: a crash in between leaves none, never those of other files.
        """
        self.jobs_file.sync()
        self.state_file.sync()
        self.sums.cut()
        self.sums.commit()
        self.sums.sync()
        self.replacing = True
        self.disk.remove(self.names[-1])
        for name in self.names:
            self.disk.replace(name, by=REWRITE_PREFIX + name)

    def abandon(self) -> None:
        """Leave nothing behind."""
        self.jobs_file.close()
        self.state_file.close()
        self.sums.close()
        for name in self.names:
            self.disk.remove(REWRITE_PREFIX + name)


def is_kept(job: Job) -> bool:
    """Whether a job must be restored: it is alive, or not all holders have its ack."""
    if job.state == ACKED:
        return bool(job.flags & ACK_NOTED)
    if job.state in (ACTIVE, QUEUED):
        return job.rules.retry_s > 0 or not job.flags & DELIVERED
    return job.rules.retry_s > 0 and is_handover(job)  # until others have it


def _write_all(file: File, data: bytes) -> None:
    while data:
        data = data[file.write(data) :]


def _state_command(job: Job, node: Node) -> bytes:
    requeue_at = job.requeue_at
    packed = STATE.pack(
        job.state,
        job.flags & STORED_FLAGS | (AHEAD_STORED if job.flags & AHEAD else 0),
        job.nacks,
        job.deliveries,
        requeue_at + node.wall_offset_ms if requeue_at else 0,
        job.token,
        min(max(requeue_at - node.now_ms, 0), LEFT_MS_MAX),
        job.tries,
    )
    if job.claim is None:
        return b"*3\r\n$5\r\nSTATE\r\n$40\r\n%b\r\n$28\r\n%b\r\n" % (job.id, packed)
    return _command(b"STATE", job.id, packed, job.claim.key)


def _held_command(job: Job) -> bytes:
    return _command(b"HELD", job.id, b"".join(sorted(job.holders.delivered)))


def _load_template(record: JobRecord) -> bytes:
    """Return a template of LOADJOB for jobs like this one, with places for id, creation time and body."""
    template, size = record_template(record)
    return b"*2\r\n$7\r\nLOADJOB\r\n$%d\r\n" % size + template + b"\r\n"
