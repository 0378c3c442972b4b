"""URLs and options of stores."""

import sys
from collections.abc import Callable
from fractions import Fraction
from types import FrameType
from typing import Any

import pytest

from penstock import DeadLetter, Push, blocking, connect
from penstock.errors import BadUrl, CallerError, PenstockError
from penstock.queues.options import parse, without_password
from penstock.queues.push import is_number


def test_options_stand_in_the_url_or_are_arguments() -> None:
    address, options, extra = parse("redis+oq://h:1/2?lease=30&namespace=A&color=red", {"lease": 5, "client": 1})
    assert (options.lease, options.namespace, options.poll) == (5, "A", None)
    assert (address.scheme, address.host, address.port, address.path) == ("redis+oq", "h", 1, "/2")
    assert address.rest == {"color": "red"}
    assert extra == {"client": 1}


@pytest.mark.parametrize(("url", "given"), [("memory:?name=A", {}), ("memory:", {"name": "A"})])
def test_the_old_name_of_an_option_says_the_new_one(url: str, given: dict[str, Any]) -> None:
    with pytest.raises(CallerError, match=r"^the option name= of memory: is now namespace=$"):
        blocking.connect(url, **given)


@pytest.mark.parametrize(
    ("push", "call"),
    [
        (lambda queue: queue.push(1, mature=5), "push"),
        (lambda queue: queue.push_many([1], mature=5), "Push"),
        (lambda queue: Push(1, mature=5), "Push"),  # type: ignore[arg-type]  # the old name is what is tested
    ],
    ids=["push", "push_many", "Push"],
)
def test_the_old_name_of_a_time_says_the_new_one(push: Callable[[Any], object], call: str) -> None:
    with blocking.connect("memory:") as store:
        queue = store.queue("q")
        with pytest.raises(TypeError, match=rf"^{call}\(\) got an unexpected .* 'mature': mature= is now at=$"):
            push(queue)
        assert queue.total() == 0


@pytest.mark.parametrize("opener", [connect, blocking.connect], ids=["async", "blocking"])
def test_an_attribute_of_a_store_that_is_private_now_says_what_to_use(opener: Callable[[str], object]) -> None:
    store = opener("memory:")
    for name, use in (("driver", "scan"), ("stats", r"topology\(\)"), ("signal", r"signal=\.\.\.")):
        with pytest.raises(AttributeError, match=rf"has no attribute '{name}': it is private; use .*{use}"):
            getattr(store, name)
    with pytest.raises(AttributeError, match=r"^'Store' object has no attribute 'nonsense'$"):
        getattr(store, "nonsense")  # noqa: B009 - the type checker knows that there is none


def test_an_unknown_option_of_a_push_is_named() -> None:
    with blocking.connect("memory:") as store, pytest.raises(TypeError, match="unexpected keyword argument 'color'"):
        store.queue("q").push(1, color="red")  # type: ignore[arg-type]  # what is refused is the argument


def test_dead_letters_in_a_url() -> None:
    assert parse("memory:?dead_letter=3", {})[1].dead_letter == DeadLetter(3)
    assert parse("memory:?dead_letter=3,given-up", {})[1].dead_letter == DeadLetter(3, "given-up")


def test_a_password_is_never_shown() -> None:
    address, _, _ = parse("redis+oq://tom:secret@h/0", {})
    assert address.url == "redis+oq://tom:***@h/0"
    assert (address.user, address.password) == ("tom", "secret")
    with pytest.raises(PenstockError) as caught:
        parse("redis+oq://tom:secret@h:port/0", {})
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("password", ["SEK/RET", "12/RET", "SEK?RET", "12?RET", "SEK#RET", "12#RET", "SEK%zRET"])
@pytest.mark.parametrize("scheme", ["redis+oq", "postgresql", "disque"])
def test_a_password_that_must_be_encoded_is_refused_without_a_piece_of_it(scheme: str, password: str) -> None:
    with pytest.raises(BadUrl, match="write / as %2F") as caught:
        parse(f"{scheme}://tom:{password}@127.0.0.1:1/0", {})
    assert "SEK" not in str(caught.value)
    assert "RET" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_password_in_an_option_is_not_shown() -> None:
    with pytest.raises(CallerError, match="lease") as caught:
        parse("redis+oq://h/0?lease=redis://tom:secret@h", {})
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("scheme", ["redis", "postgresql", "mongodb", "mongodb+bucket", "disque", "nonsense"])
@pytest.mark.parametrize(
    "rest",
    [
        ":tom:SEKRET@h/0",
        ":/tom:SEKRET@h/0",
        ":///tom:SEKRET@h/0",
        ":SEKRET@h/0",
        "://h/0?lease=x&password=SEKRET",
        "://h/0?lease=x&tlsCertificateKeyFilePassword=SEKRET",
        "://h/0?lease=x&authMechanismProperties=AWS_SESSION_TOKEN:SEKRET",
    ],
)
def test_a_url_with_a_mistake_is_refused_without_its_password(scheme: str, rest: str) -> None:
    with pytest.raises(CallerError) as caught:
        parse(scheme + rest, {})
    assert "SEKRET" not in str(caught.value)
    assert scheme in str(caught.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://h/0?password=a%26b&poll=1", "redis://h/0?password=***&poll=1"),
        ("redis:tom:secret@h", "redis:***@h"),
        ("redis:/tom:secret@h", "redis:/tom:***@h"),
        ("redis://tom@h", "redis://tom@h"),
        ("fsq:///data/a:b@c", "fsq:///data/a:b@c"),
        ("/data/a:b@c", "/data/a:b@c"),
        ("./data/a:b@c", "./data/a:b@c"),
        ("secret@h", "***@h"),
        (":sec/ret@h:6379", "***@h:6379"),
    ],
)
def test_what_is_shown_of_a_url(url: str, shown: str) -> None:
    assert without_password(url) == shown


def test_a_password_may_have_an_at_sign_and_a_path_may_have_one_too() -> None:
    assert parse("redis+oq://tom:p@ss@h/0", {})[0].password == "p@ss"
    assert parse("sqlite:///data/a:b@c.db", {})[0].url == "sqlite:///data/a:b@c.db"


@pytest.mark.parametrize("url", ["", "jobs.db", "redis+oq://h:port", "//x"])
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(BadUrl):
        parse(url, {})


@pytest.mark.parametrize(
    ("option", "value"), [("lease", 0), ("lease", "x"), ("lease", -1), ("poll", 1e99), ("name", "a:b"), ("name", "")]
)
def test_options_that_can_not_be_are_refused(option: str, value: Any) -> None:
    with pytest.raises(CallerError, match=option):
        parse("memory:", {option: value})


def test_an_unknown_store_is_answered_with_the_known_ones() -> None:
    with pytest.raises(BadUrl, match=r"no store nosuch: known are memory:, sqlite:"):
        blocking.connect("nosuch://x")


def test_numbers_of_python_are_told_without_asking_a_protocol() -> None:
    """`isinstance` with a protocol runs Python code of `typing`, longer than the rest of a call does."""
    asked: list[str] = []

    def note(frame: FrameType, event: str, arg: object) -> None:
        if event == "call" and frame.f_globals.get("__name__") == "typing":
            asked.append(frame.f_code.co_name)

    with blocking.connect("memory:") as store:
        queue = store.queue("q")
        sys.setprofile(note)
        try:
            queue.push(1, delay=0.0, at=0)
            queue.push(2)
            queue.reserve(timeout=0, lease=60).ack()
            queue.pop(timeout=0.5)
        finally:
            sys.setprofile(None)
    assert asked == []
    assert is_number(Fraction(1, 2))
    assert not is_number("1")
