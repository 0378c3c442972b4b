"""The life of a journal in a broker: loaded at the start, written, rewritten, turned on and off, closed.

    off --turn_on--> wait-rewrite --rewrite done--> on --turn_off--> off

A journal that is turned on at run time begins with a rewrite, so that it holds the jobs that exist already. A rewrite
runs in steps that the shell takes between other work (`step`).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from penstock.broker.checksums import Tails
from penstock.broker.core import inputs
from penstock.broker.core.jobs import Job
from penstock.broker.core.refusals import Refused
from penstock.broker.disk import Disk
from penstock.broker.journal import Journal, file_names
from penstock.broker.recovery import Load
from penstock.errors import JournalError

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

log = logging.getLogger("penstock")

OFF, ON, WAIT_REWRITE = "off", "on", "wait-rewrite"


class Persistence:
    """The journal of a broker, and its state."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.journal: Journal | None = None
        self.state = OFF
        self.loading = False
        self.loading_started_s = 0
        self.loading_total_bytes = 0
        self.rewrite_scheduled = False
        self.rewrite_started_ms = 0
        self.last_rewrite_s = -1
        self.last_rewrite_ok = True
        self._load: Load | None = None
        self._unsaved: list[Job] = []  # loaded, but not as the files say
        self._tails: Tails | None = None  # what was loaded without a checksum
        self._closed: Journal | None = None  # once the node is about to end
        self._once: Journal | None = None  # for a rewrite while the journal is off: a file of this moment

    @property
    def _disk(self) -> Disk:
        return self._broker.disk

    @property
    def failure(self) -> str:
        """Why the journal can't be written, while it can't."""
        if self._closed is not None:
            return "the node is stopping"
        return self.journal.failure if self.journal is not None else ""

    def refusal(self) -> tuple[str, str]:
        """Return the code and text of the error for commands that change something meanwhile."""
        return "MISCONF", f"Errors writing to the AOF file: {self.failure}"

    @property
    def loading_read_bytes(self) -> int:
        """How far a load has come."""
        return self._load.read_bytes if self._load is not None else 0

    @property
    def rewriting(self) -> bool:
        """Whether a rewrite is under way."""
        return self._rewriter() is not None

    def _rewriter(self) -> Journal | None:
        for journal in (self.journal, self._once):
            if journal is not None and journal.rewrite is not None:
                return journal
        return None

    # Start

    def begin_load(self, total_bytes: int) -> Load:
        """Start to bring back what the journal holds; the shell iterates the load, then calls `end_load`."""
        config = self._broker.config
        self.loading = True
        self.loading_started_s = int(self._broker.wall())
        self.loading_total_bytes = total_bytes
        self._load = Load(
            self._broker.node,
            self._disk,
            config.appendfilename,
            cut_torn=config.aof_load_truncated,
            enqueue_once=config.aof_enqueue_jobs_once,
            timeout_ms=config.cluster_node_timeout,
        )
        self._broker.refresh_checks()
        return self._load

    def end_load(self) -> None:
        """Go on with the journal that was loaded."""
        assert self._load is not None
        loaded = self._load.result
        self._unsaved = self._load.unsaved
        self._tails = self._load.tails
        if self._load.damaged_checksums:
            log.warning(
                "%d checksums of the journal are damaged themselves: the blocks that they were for were not checked",
                self._load.damaged_checksums,
            )
        self._load = None
        self.loading = False
        if loaded.restored or loaded.expired:
            log.info("journal loaded: %d jobs, %d more had expired", loaded.restored, loaded.expired)
        if loaded.cut_bytes:
            log.warning("journal: the last %d bytes were an incomplete record and were cut", loaded.cut_bytes)
        if loaded.withheld:
            log.warning(
                "%d at-most-once jobs may have been delivered before the machine stopped; they stay visible as "
                "active and are not delivered again",
                loaded.withheld,
            )
        self._broker.refresh_checks()

    def open(self) -> None:
        """Begin to write."""
        broker = self._broker
        config = broker.config
        self.journal = Journal(broker.node, self._disk, config.appendfilename, config.appendfsync, self._tails)
        self._tails = None
        broker.node.journal = self.journal
        self.state = ON
        self._save_loaded(self.journal)
        self.journal.start()
        if not self.journal.flush():
            raise JournalError(f"the journal can't be written: {self.journal.failure}")

    def _save_loaded(self, journal: Journal) -> None:
        """Write down what a load decided, before a START lets the next one believe more than this one could."""
        for job in self._unsaved:
            journal.changed(job)
        self._unsaved = []

    # Running

    def flush(self) -> bool:
        """Make safe what happened; False if that failed just now, so that replies must not leave."""
        journal = self.journal
        if journal is None:
            return self._closed is None or not self._closed.pending
        if not journal.pending:
            return True
        if journal.failure and not journal.pending_jobs:
            return True  # timers only: nothing that a client is told about, and the cron tries again
        known = journal.failure
        if journal.flush():
            return True
        if journal.failure != known:
            log.error("the journal can't be written (%s): writes are refused until it can", journal.failure)
            self._broker.refresh_checks()
        return False

    def cron(self) -> None:
        """Ten times a second."""
        journal = self.journal
        if journal is not None and not self.loading:
            before = journal.failure
            journal.cron()
            if journal.failure != before:
                if journal.failure:
                    log.error(
                        "the journal can't be synced (%s): writes are refused until BGREWRITEAOF has succeeded",
                        journal.failure,
                    )
                else:
                    log.warning("the journal can be written again")
                self._broker.refresh_checks()
        if not self.rewriting and (self.rewrite_scheduled or self._has_grown()):
            self.rewrite_scheduled = False
            self.begin_rewrite()

    def _has_grown(self) -> bool:
        config, journal = self._broker.config, self.journal
        if journal is None or self.state != ON or not config.auto_aof_rewrite_percentage or journal.failure:
            return False
        if journal.size <= config.auto_aof_rewrite_min_size:
            return False
        return (journal.size - journal.base_bytes) * 100 >= config.auto_aof_rewrite_percentage * max(
            1, journal.base_bytes
        )

    def begin_rewrite(self) -> None:
        """Start a rewrite of the journal; with the journal off, write one file of this moment."""
        if self.rewriting:
            raise Refused("ERR", "Background append only file rewriting already in progress")
        broker = self._broker
        try:
            if self.journal is None:
                self._once = Journal(broker.node, self._disk, broker.config.appendfilename, broker.config.appendfsync)
                broker.node.journal = self._once
            journal = self.journal or self._once
            assert journal is not None
            journal.begin_rewrite()
        except OSError as error:
            self._rewrite_ended(str(error))
            raise Refused("ERR", f"the journal can't be rewritten: {error}") from None
        self.rewrite_started_ms = broker.node.now_ms

    def step(self) -> bool:
        """Do a little of a rewrite; True while there is more to do."""
        journal = self._rewriter()
        if journal is None:
            return False
        try:
            if not journal.step_rewrite():
                return True
        except OSError as error:
            self._rewrite_ended(str(error))
            return False
        self._rewrite_ended("")
        return False

    def _rewrite_ended(self, problem: str) -> None:
        broker = self._broker
        self.last_rewrite_ok = not problem
        self.last_rewrite_s = (broker.node.now_ms - self.rewrite_started_ms) // 1000
        if problem:
            log.error("rewriting the journal failed: %s", problem)
        else:
            log.info("journal rewritten")
        if self._once is not None:
            self._once.leave()
            self._once.close()
            self._once = None
            broker.node.journal = self.journal
        if self.state == WAIT_REWRITE and not problem:
            self.state = ON
        elif self.state == WAIT_REWRITE:
            self.rewrite_scheduled = True
        broker.refresh_checks()

    def turn_on(self) -> None:
        """CONFIG SET appendonly yes."""
        if self.journal is not None:
            return
        if self.rewriting:
            raise Refused("ERR", "Unable to turn on AOF. Check server logs.")
        try:
            for name in file_names(self._broker.config.appendfilename):
                self._disk.append(name, fresh=True).close()
            self.open()
            self.begin_rewrite()
        except (OSError, JournalError, Refused) as error:
            log.error("the journal can't be turned on: %s", error)
            self.turn_off()
            raise Refused("ERR", "Unable to turn on AOF. Check server logs.") from None
        self.state = WAIT_REWRITE

    def turn_off(self) -> None:
        """CONFIG SET appendonly no."""
        if self.journal is not None:
            self.journal.leave()
            self.journal.close()
        self.journal = None
        self._broker.node.journal = None
        self.state = OFF
        self._broker.refresh_checks()

    def reload(self) -> bool:
        """DEBUG LOADAOF: forget everything and load the file; False if it holds nothing."""
        broker = self._broker
        journal = self.journal
        if journal is not None and not journal.flush():
            raise JournalError(f"the journal can't be written, so it isn't loaded: {journal.failure}")
        if journal is not None and journal.rewrite is not None:  # it walks over the jobs that are about to be replaced
            journal.stop_rewrite()
            self.rewrite_scheduled = True
        broker.node.journal = None
        try:
            inputs.drop_all(broker.node)
            load = self.begin_load(0)
            for _ in load:
                pass
            self.end_load()
        finally:
            self.loading = False
            self._tails = None  # the journal goes on, with the checksums that it has
            broker.node.journal = journal
            broker.refresh_checks()
        if journal is not None:
            self._save_loaded(journal)
        return load.records > 0

    def close(self, rewrite: bool) -> bool:
        """Stop in order, with a rewrite if asked for; False if something could not be written."""
        if self.state == WAIT_REWRITE:
            return False
        if self._once is not None:
            self._once.leave()
            self._once.close()
            self._once = self._broker.node.journal = None
        if rewrite and not self.loading:
            try:
                if not self.rewriting:
                    self.begin_rewrite()
                while self.step():
                    pass
            except Refused:
                return False
            if not self.last_rewrite_ok:
                return False
        journal = self.journal
        if journal is not None:
            if not journal.finish():
                self._broker.refresh_checks()
                return False
            journal.close()
            # It still collects what happens until the process ends: nothing of that may be promised any more.
            self._closed = journal
            self.journal = None
        self._broker.refresh_checks()
        return True
