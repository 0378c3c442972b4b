"""Every store that the suite runs on, and what tests need of one: connections, names of their own, and time.

To join: add a row to PLACES. A test gets a `Place` of a store in one of the library's two forms, and writes what it
does as if it were async; `facade` makes that true of the blocking form.

Time doesn't pass by sleeping: `advance` shifts the clocks of all stores that were opened through the place, or that of
the server itself. A server that can't be shifted says so, tests sleep there, and `unit` is short. So tests give delays
and leases that they want to see the end of in units, and long ones otherwise.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import MissingExtra
from penstock.queues import aio, blocking, registry
from penstock.queues.capabilities import Capability
from tests.processes import lacking
from tests.stores.facade import Facade
from tests.stores.shifting_node import ShiftingNode

AIO, BLOCKING = "aio", "blocking"

PATIENCE = 30.0  # seconds until a job that must come is given up; only a failing test waits for it
NEVER = 300.0  # a poll interval that no test lives to see: what comes, came by a signal

# No call asks for these, so a store without them refuses nothing: tests that need them are skipped there.
SILENT = frozenset({Capability.TOKEN, Capability.ATOMIC_MOVE, Capability.SHARED_PAUSE})

_numbers = itertools.count(1)


class Differs(Enum):
    """Ways in which a store may differ without lacking a capability. A row of PLACES names them."""

    ORDER = auto()  # jobs come in the order in which they were made, not in that of their maturity
    NO_NEXT_MATURE = auto()  # it can't tell when the next job is ready
    NO_TRIES_AT_PUSH = auto()  # a job begins with no tries, whatever its push says
    NO_IDS = auto()  # jobs have no ids
    OWN_IDS = auto()  # a job that moves to another queue gets another id there
    STAYS_BACK = auto()  # a job whose lease once ran out is known as such forever
    KEY_ORDER = auto()  # the names in an object come back in another order
    NO_NULL = auto()  # a payload of null is stored as bytes
    NO_FALSY = auto()  # so are 0, false and the empty text
    PLAIN_HEADERS = auto()  # headers with zero bytes or half characters are refused


@dataclass(frozen=True)
class Kind:
    """A row of the table."""

    url: Callable[[pytest.FixtureRequest], str]
    differs: frozenset[Differs] = frozenset()
    marks: tuple[pytest.MarkDecorator, ...] = ()
    can_shift: bool = True
    unit: float = 100.0  # seconds
    slack: float = 0.0  # how much later than its time a job may come, where time is that of a server
    server: Callable[[pytest.FixtureRequest], ShiftingNode] | None = None  # whose clock is shifted, not the store's
    options: dict[str, Any] = field(default_factory=dict)
    # A store that shares its code with another one runs in one form only, where a test would run in both.
    forms: tuple[str, ...] = (AIO, BLOCKING)
    # A store that shares its driver with another: without PENSTOCK_LONG only these modules run on it, see `is_wanted`.
    only: frozenset[str] = frozenset()
    histories: float = 1.0  # of those that the machine runs: less for a server that is slow at what it does


def _redis(scheme: str) -> Callable[[pytest.FixtureRequest], str]:
    return lambda request: request.getfixturevalue("redis_server").url.replace("redis:", f"{scheme}:", 1)


def _sqlite(request: pytest.FixtureRequest) -> str:
    folder: Path = request.getfixturevalue("tmp_path")
    return f"sqlite:///{folder}/jobs.db"


def _fsq(request: pytest.FixtureRequest) -> str:
    return f"fsq:{request.getfixturevalue('tmp_path')}/root"


def _disque_node(request: pytest.FixtureRequest) -> ShiftingNode:
    node: ShiftingNode = request.getfixturevalue("disque_node")
    return node


def _disque(request: pytest.FixtureRequest) -> str:
    node = _disque_node(request)
    return f"disque://{node.host}:{node.port}"


def _mongo(scheme: str) -> Callable[[pytest.FixtureRequest], str]:
    # A database for each, since all collections of a database are taken for queues.
    database = scheme.replace("+", "_").replace("-", "_")
    return lambda request: request.getfixturevalue("mongo_server").url(scheme, database)


SYSTEM = (pytest.mark.system,)

# What a layout of a driver can get wrong; how to wait, count, cancel and refuse is the driver's and the library's.
OF_LAYOUTS = frozenset({"test_behaviour", "test_dead_letters", "test_leases", "test_moves"})
OF_OTHER_DOCUMENTS = OF_LAYOUTS | {
    "test_by_id",
    "test_claims",
    "test_machine",
    "test_reading",
    "test_scan",
    "test_tries",
}

PLACES = {
    "memory": Kind(lambda request: f"memory:test{next(_numbers)}"),
    # Only a power cut would tell the difference, and none of these tests makes one.
    "sqlite": Kind(_sqlite, options={"sync": "off"}),
    "fsq": Kind(_fsq, options={"sync": 0}),
    "redis+list": Kind(
        _redis("redis+list"), frozenset({Differs.NO_IDS, Differs.NO_NEXT_MATURE, Differs.ORDER}), SYSTEM
    ),
    "redis+oq": Kind(_redis("redis+oq"), marks=SYSTEM),
    # jsonb, which Keuss keeps jobs in, has no order of names, no zero bytes and no half characters.
    "postgresql": Kind(
        lambda request: request.getfixturevalue("postgres_server").url(),
        frozenset({Differs.KEY_ORDER, Differs.PLAIN_HEADERS}),
        SYSTEM,
        histories=0.3,  # each begins with tables of its own
    ),
    **{
        scheme: Kind(
            _mongo(scheme),
            frozenset({Differs.NO_NULL, Differs.PLAIN_HEADERS, *more}),
            SYSTEM,
            slack=0.02,  # delays are counted by the server's clock, as far as a client knows it
            forms=forms,
            only=only,
            histories=0.3,  # each begins with collections of its own
        )
        for scheme, forms, more, only in [
            ("mongodb", (AIO, BLOCKING), (), frozenset[str]()),
            ("mongodb+pl", (AIO,), (), OF_LAYOUTS),
            ("mongodb+ps", (BLOCKING,), (), OF_LAYOUTS | {"test_reading"}),  # it alone keeps ended jobs so
            ("mongodb+stream", (AIO,), (Differs.OWN_IDS,), OF_OTHER_DOCUMENTS),
            ("mongodb+intraorder", (BLOCKING,), (Differs.OWN_IDS,), OF_OTHER_DOCUMENTS),
        ]
    },
    "mongodb+bucket": Kind(
        _mongo("mongodb+bucket"),
        frozenset({Differs.NO_NULL, Differs.NO_FALSY, Differs.PLAIN_HEADERS, Differs.OWN_IDS}),
        SYSTEM,
        slack=0.02,
        forms=(AIO,),
        histories=0.3,
    ),
    "mongodb+bucket-plain": Kind(
        _mongo("mongodb+bucket-plain"),
        frozenset({Differs.NO_NULL, Differs.NO_IDS, Differs.NO_NEXT_MATURE, Differs.ORDER, Differs.NO_TRIES_AT_PUSH}),
        SYSTEM,
        slack=0.02,
        forms=(AIO,),
        histories=0.3,
    ),
    "disque": Kind(
        _disque,
        frozenset({Differs.ORDER, Differs.OWN_IDS, Differs.STAYS_BACK}),
        SYSTEM,
        slack=0.01,
        server=_disque_node,
    ),
}

_capabilities: dict[tuple[str, str], frozenset[Capability]] = {}


class Place:
    """A store in one form, for one test."""

    def __init__(self, name: str, form: str, request: pytest.FixtureRequest) -> None:
        self.kind = PLACES[name]
        self.name = name
        self.form = form
        _need(name, form)
        self.url = self.kind.url(request)
        self.can_shift = self.kind.can_shift
        self.unit = self.kind.unit
        self.coarse_seconds = not self.can_shift
        self.namespace = f"ns{os.getpid()}x{next(_numbers)}"
        self._stores: list[Any] = []
        self._shifted = 0.0
        self._server = None if self.kind.server is None else self.kind.server(request)

    def __repr__(self) -> str:
        return f"<Place {self.name} {self.form}>"

    def differs(self, how: Differs) -> bool:
        """Whether the store is different in this way."""
        return how in self.kind.differs

    def need(self, how: Differs) -> None:
        """Skip the test on a store that is different in this way."""
        if self.differs(how):
            pytest.skip(f"{self.name} differs: {how.name}")

    def connect(self, **options: Any) -> Any:
        """A store in the place's form, to be opened with `async with`."""
        return self.connect_blocking(**options) if self.form == BLOCKING else self.connect_aio(**options)

    def connect_aio(self, **options: Any) -> Any:
        """A store in the async form, whatever the place's is."""
        return self._keep(aio.connect(self.url, **self._options(options)))

    def connect_blocking(self, **options: Any) -> Any:
        """A store in the blocking form, looking like an async one."""
        return self._keep(Facade(blocking.connect(self.url, **self._options(options))))

    def _options(self, options: dict[str, Any]) -> dict[str, Any]:
        return {"namespace": self.namespace, "poll": NEVER, **self.kind.options, **options}

    def _keep(self, store: Any) -> Any:
        store.shift_clock(self._shifted)
        self._stores.append(store)
        return store

    def new_name(self, stem: str = "queue") -> str:
        """A name that no other test uses."""
        return f"{stem}-{os.getpid()}-{next(_numbers)}"

    async def capabilities(self) -> frozenset[Capability]:
        """What the store can do, by its own word."""
        if (self.name, self.form) not in _capabilities:
            async with self.connect() as store:
                _capabilities[self.name, self.form] = store.capabilities
        return _capabilities[self.name, self.form]

    def now(self) -> float:
        """The place's time, as far as this machine knows it."""
        return time.time() + (self._shifted if self._server is None else self._server.shifted)

    async def advance(self, seconds: float) -> None:
        """Let time pass for every store that was opened here."""
        if not self.can_shift:
            await asyncio.sleep(seconds + self.kind.slack)
            return
        if self._server is not None:
            self._server.shift(seconds + self.kind.slack)
            return
        self._shifted += seconds + self.kind.slack
        for store in self._stores:
            store.shift_clock(seconds + self.kind.slack)


def _need(name: str, form: str) -> None:
    """Skip a store that isn't there yet, or whose driver isn't installed; fail for want of it in CI."""
    try:
        registry.find("stores", name, form)
    except MissingExtra as problem:
        lacking(str(problem))
    except ModuleNotFoundError as problem:
        if not (problem.name or "").startswith("penstock.queues"):
            raise
        reason = f"{name} has no {problem.name} yet"
        pytest.fail(reason) if os.environ.get("CI") == "true" and name in registry.STORES else pytest.skip(reason)


def places(forms: tuple[str, ...]) -> Iterator[Any]:
    """Parameters for fixtures: each store in each of the forms."""
    for name, kind in PLACES.items():
        for form in forms if len(forms) == 1 else kind.forms:
            yield pytest.param((name, form), id=name if form == AIO else f"{name}-{form}", marks=kind.marks)


def is_wanted(item: pytest.Item) -> bool:
    """Whether a test is to run on the store that it has as its parameter."""
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    chosen = parameters.get("place", parameters.get("aio_place"))
    kind = PLACES.get(chosen[0]) if isinstance(chosen, tuple) else None
    only = frozenset[str]() if kind is None else kind.only
    return not only or os.environ.get("PENSTOCK_LONG") == "1" or item.path.stem in only


def needs(*capabilities: Capability) -> pytest.MarkDecorator:
    """What a test needs of a store. On one that lacks it, the test must end in an Unsupported that names it."""
    return pytest.mark.needs(*capabilities)
