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
