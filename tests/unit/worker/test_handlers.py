"""Handlers by name, and by payload; what counts as async."""

import functools
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock import Job, Worker
from penstock.errors import CallerError
from penstock.worker.handlers import load, payload_handler
from penstock.worker.worker import is_async
from tests.unit.worker.virtual_time import memory_store, virtual


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current directory for modules, which are found only by being there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*__import__("sys").path])
    return tmp_path


def test_a_function_of_a_module_in_the_current_directory_is_found(here: Path) -> None:
    (here / "shop_a.py").write_text("class Mail:\n    @staticmethod\n    def send(job): return job\n")
    handler: Any = load("shop_a:Mail.send")
    assert handler(7) == 7


@pytest.mark.parametrize(
    ("name", "text", "hint"),
    [
        ("send", "", "module:function"),
        ("shop_b:", "", "module:function"),
        ("shop_b:a b", "", "module:function"),
        ("shop_none:send", "", "no module 'shop_none'"),
        ("shop_b.sub:send", "", "no module 'shop_b.sub'"),
        ("shop_b:sned", "def send(job): pass", "it has send"),
        ("shop_b:number", "number = 3", "must be a function, got int"),
        ("shop_b:send", "import nothing_like_it", "nothing_like_it"),
        ("shop_b:send", "\nraise ValueError('no settings')", r"ValueError: no settings \(.*shop_b.py, line 2\)"),
        ("shop_b:send", "def send(:", "SyntaxError"),
    ],
)
def test_a_handler_that_cannot_be_had_is_the_users_mistake(
    name: str, text: str, hint: str, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "shop_b.py").write_text(text)
    monkeypatch.delitem(__import__("sys").modules, "shop_b", raising=False)
    with pytest.raises(CallerError, match=hint):
        load(name)
    monkeypatch.delitem(__import__("sys").modules, "shop_b", raising=False)


async def _awaits(job: Job) -> None:
    pass


class _Object:
    async def __call__(self, job: Job) -> None:
        pass

    async def method(self, job: Job) -> None:
        pass


@pytest.mark.parametrize("handler", [_awaits, functools.partial(_awaits), _Object(), _Object().method])
def test_what_awaits_is_known_to_await(handler: Any) -> None:
    assert is_async(handler)


@pytest.mark.parametrize("handler", [lambda job: None, functools.partial(print), SimpleNamespace(), print, _Object])
def test_what_does_not_await_is_known_not_to(handler: Any) -> None:
    assert not is_async(handler)


def _yields(job: Job) -> Iterator[None]:
    yield


async def _awaits_and_yields(job: Job) -> AsyncIterator[None]:
    yield


class _Yields:
    def __call__(self, job: Job) -> Iterator[None]:
        yield

    async def method(self, job: Job) -> AsyncIterator[None]:
        yield


@pytest.mark.parametrize(
    "handler", [_yields, _awaits_and_yields, functools.partial(_yields), _Yields(), _Yields().method]
)
@pytest.mark.parametrize("make", [lambda handler: Worker("memory:", "mail", handler), payload_handler])
def test_a_generator_is_no_handler(handler: Any, make: Callable[[Any], object]) -> None:
    with pytest.raises(CallerError, match="yield"):
        make(handler)


@virtual
async def test_an_async_function_that_forgets_to_await_has_failed() -> None:
    async def handle(job: Job) -> object:
        return _awaits(job)

    async with memory_store() as store:
        await store.queue("mail").push("x")
        summary = await Worker(store, "mail", handle, max_tries=1).run(until_empty=True)
        assert (summary.done, summary.failed) == (0, 1)


@virtual
async def test_a_payload_handler_is_given_the_payload() -> None:
    seen: list[object] = []

    async def handle(payload: object) -> None:
        seen.append(payload)

    async with memory_store() as store:
        await store.queue("mail").push({"to": "ann"})
        await Worker(store, "mail", payload_handler(handle)).run(until_empty=True)
    assert seen == [{"to": "ann"}]


def test_a_plain_payload_handler_stays_plain() -> None:
    handler: Any = payload_handler(lambda payload: payload + 1)
    assert not is_async(handler)
    assert handler(SimpleNamespace(payload=1)) == 2
