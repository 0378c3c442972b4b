"""URLs and options of stores."""

from typing import Any

import pytest

from penstock import DeadLetter, blocking
from penstock.errors import BadUrl, CallerError, PenstockError
from penstock.queues.options import parse


def test_options_stand_in_the_url_or_are_arguments() -> None:
    address, options, extra = parse("redis+oq://h:1/2?lease=30&name=A&color=red", {"lease": 5, "client": 1})
    assert (options.lease, options.name, options.poll) == (5, "A", None)
    assert (address.scheme, address.host, address.port, address.path) == ("redis+oq", "h", 1, "/2")
    assert address.rest == {"color": "red"}
    assert extra == {"client": 1}


def test_dead_letters_in_a_url() -> None:
    assert parse("memory:?dead_letter=3", {})[1].dead_letter == DeadLetter(3)
    assert parse("memory:?dead_letter=3,graves", {})[1].dead_letter == DeadLetter(3, "graves")


def test_a_password_is_never_shown() -> None:
    address, _, _ = parse("redis+oq://tom:secret@h/0", {})
    assert address.url == "redis+oq://tom:***@h/0"
    assert (address.user, address.password) == ("tom", "secret")
    with pytest.raises(PenstockError) as caught:
        parse("redis+oq://tom:secret@h:port/0", {})
    assert "secret" not in str(caught.value)


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
