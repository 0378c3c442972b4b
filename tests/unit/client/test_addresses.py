"""Seeds: every way to write them down, and what is wrong with the others."""

import re

import pytest

from penstock.client.addresses import SEEDS_MAX, Address, Seeds, parse_address, parse_seeds
from penstock.errors import CallerError

A, B = Address("10.0.0.1", 7711), Address("10.0.0.2", 7712)


@pytest.mark.parametrize(
    ("given", "seeds"),
    [
        ("10.0.0.1", Seeds((A,))),
        ("10.0.0.1:7711,10.0.0.2:7712", Seeds((A, B))),
        (" 10.0.0.1 , 10.0.0.2:7712,", Seeds((A, B))),
        ("10.0.0.1,10.0.0.1:7711", Seeds((A,))),
        (["10.0.0.1", ("10.0.0.2", 7712)], Seeds((A, B))),
        (iter(["10.0.0.1"]), Seeds((A,))),
        ("disque://10.0.0.1,10.0.0.2:7712", Seeds((A, B))),
        ("disque://10.0.0.1/", Seeds((A,))),
        ("disque://:secret@10.0.0.1", Seeds((A,), "secret")),
        ("disque://:p%40s%2Cs:w@10.0.0.1", Seeds((A,), "p@s,s:w")),
        ("disque://anyone:secret@10.0.0.1", Seeds((A,), "secret")),
        ("disque://:@10.0.0.1", Seeds((A,))),
        ("disques://10.0.0.1", Seeds((A,), None, True)),
    ],
)
def test_seeds_are_a_text_a_list_or_a_url(given: object, seeds: Seeds) -> None:
    assert parse_seeds(given) == seeds  # type: ignore[arg-type]  # every form that is allowed, in one table


@pytest.mark.parametrize(
    ("given", "host", "port"),
    [
        ("node", "node", 7711),
        ("node:1", "node", 1),
        ("[::1]:7712", "::1", 7712),
        ("[::1]", "::1", 7711),
        ("fe80::1", "fe80::1", 7711),
    ],
)
def test_an_address_is_a_host_and_maybe_a_port(given: str, host: str, port: int) -> None:
    assert parse_address(given) == Address(host, port)


@pytest.mark.parametrize("given", ["node:port", "node:0", "node:65536", ":7711", "[::1", "[::1]7711", "node:-1"])
def test_a_wrong_address_is_named(given: str) -> None:
    with pytest.raises(CallerError, match=rf"address.* must .*, got '?{re.escape(given)}"):
        parse_seeds(given)


@pytest.mark.parametrize("given", ["", ",", [], "disque://"])
def test_no_seeds_are_an_error(given: str) -> None:
    with pytest.raises(CallerError, match="at least one node"):
        parse_seeds(given)


def test_a_url_of_something_else_is_refused() -> None:
    with pytest.raises(CallerError, match="got redis://"):
        parse_seeds("redis://10.0.0.1")


def test_there_is_a_limit_on_seeds() -> None:
    with pytest.raises(CallerError, match=str(SEEDS_MAX)):
        parse_seeds([("node", port) for port in range(1, SEEDS_MAX + 2)])


def test_an_ipv6_address_is_shown_in_brackets() -> None:
    assert str(Address("::1", 7711)) == "[::1]:7711"
    assert str(A) == "10.0.0.1:7711"
