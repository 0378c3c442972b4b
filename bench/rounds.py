"""Rounds of sessions: what the benchmarks of rates have in common.

Every round runs each session once; sessions of one shape come in shuffled order right after each other, so that a
noisy neighbour meets all of them. A session that failed once isn't tried again: the rows that need it say why.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from bench.report import Progress
from bench.servers import NotRunError

Result = TypeVar("Result")
Result_co = TypeVar("Result_co", covariant=True)


class Session(Protocol[Result_co]):
    """What is started, loaded and stopped in one round; a value that can be a key."""

    @property
    def name(self) -> str:
        """For the progress line."""

    @property
    def shape(self) -> str:
        """The kind of load: those of one kind are compared with each other."""

    def run(self, quick: bool, program: Path) -> Result_co:
        """Do everything; raises NotRunError or OSError."""


class Rounds(Generic[Result]):
    """The results of all rounds, and the reasons of sessions that could not run."""

    def __init__(self, quick: bool, program: Path) -> None:
        self.quick = quick
        self.program = program
        self.results: dict[Session[Result], list[Result]] = {}
        self.failures: dict[Session[Result], str] = {}

    def run(self, sessions: Sequence[Session[Result]], rounds: int) -> None:
        """All sessions, round by round."""
        progress = Progress(rounds * len(sessions))
        for number in range(rounds):
            for shape in dict.fromkeys(session.shape for session in sessions):
                group = [session for session in sessions if session.shape == shape]
                random.shuffle(group)
                for session in group:
                    progress.step(f"round {number + 1}: {session.name}")
                    self._run_one(session)
        progress.end()

    def _run_one(self, session: Session[Result]) -> None:
        if session in self.failures:
            return
        try:
            result = session.run(self.quick, self.program)
        except (NotRunError, OSError) as error:
            self.failures[session] = str(error)
            return
        self.results.setdefault(session, []).append(result)
