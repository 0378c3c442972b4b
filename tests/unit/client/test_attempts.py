"""The attempts of one call: rounds, pauses, and how it ends."""

import random

import pytest

from penstock.client.addresses import Address
from penstock.client.attempts import Attempts, NotSent
from penstock.client.requests import Request
from penstock.client.settings import ClientSettings, ConnectionSettings
from penstock.errors import AuthenticationError, CallerError, ConnectionLost, ReplyError, TimedOut, Unreachable
from tests.unit.client.nodes import Clock

A, B = Address("10.0.0.1", 7711), Address("10.0.0.2", 7711)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def settings(clock: Clock) -> ClientSettings:
    return ClientSettings(connections=ConnectionSettings(clock=clock), timeout=30.0, randomness=random.Random(7))


@pytest.fixture
def attempts(settings: ClientSettings, clock: Clock) -> Attempts:
    return Attempts(Request(("QLEN", "q")), settings, clock.now)


def test_a_node_that_failed_is_not_tried_again_in_this_round(attempts: Attempts, settings: ClientSettings) -> None:
    attempts.failed(A, NotSent("refused"))
    assert attempts.tried == {A}
    attempts.pause(settings)
    assert attempts.tried == set()


def test_a_node_whose_connection_broke_gets_a_second_chance(attempts: Attempts) -> None:
    attempts.note(A, ConnectionLost("cut"))
    assert attempts.tried == set()
    attempts.note(A, ConnectionLost("cut"))
    assert attempts.tried == {A}


def test_a_node_that_did_not_answer_gets_none(attempts: Attempts) -> None:
    attempts.note(A, TimedOut("silence"))
    assert attempts.tried == {A}


def test_pauses_grow_to_a_limit_and_are_spread(attempts: Attempts, settings: ClientSettings) -> None:
    pauses = [attempts.pause(settings) for _ in range(40)]
    longest = [min(settings.pause_max, settings.pause_first * 2**at) for at in range(40)]
    assert all(limit / 2 <= pause <= limit for pause, limit in zip(pauses, longest, strict=True))
    assert len(set(pauses[10:])) > 20


def test_pauses_can_go_on_for_hours(attempts: Attempts, settings: ClientSettings) -> None:
    for _ in range(2000):
        assert attempts.pause(settings) <= settings.pause_max


def test_the_end_names_every_node_and_what_it_answered(
    attempts: Attempts, settings: ClientSettings, clock: Clock
) -> None:
    attempts.failed(A, NotSent(f"Could not connect to {A}: Connection refused"))
    attempts.failed(B, ReplyError("LOADING not yet"))
    clock.now += 30.0
    with pytest.raises(Unreachable) as caught:
        attempts.pause(settings)
    assert str(caught.value) == (
        "No node executed QLEN within 30 s. Could not connect to 10.0.0.1:7711: Connection refused."
        " 10.0.0.2:7711 answered: LOADING not yet."
    )
    assert caught.value.said == {
        "10.0.0.1:7711": "Could not connect to 10.0.0.1:7711: Connection refused",
        "10.0.0.2:7711": "LOADING not yet",
    }


def test_there_is_no_pause_that_would_not_end_in_time(
    attempts: Attempts, settings: ClientSettings, clock: Clock
) -> None:
    attempts.failed(A, NotSent("refused"))
    clock.now += 29.99
    with pytest.raises(Unreachable):
        attempts.pause(settings)


def test_time_that_the_node_itself_may_take_is_added(settings: ClientSettings, clock: Clock) -> None:
    attempts = Attempts(Request(("ADDJOB", "q", "b", 5000), wait=5.0), settings, clock.now)
    assert attempts.left(clock.now) == 35.0


def test_after_failures_the_end_comes_with_the_time(attempts: Attempts, clock: Clock) -> None:
    assert attempts.left(clock.now + 31) > 0  # a first attempt is made, however late it is
    attempts.failed(A, NotSent("refused"))
    with pytest.raises(Unreachable):
        attempts.left(clock.now + 31)


def test_passwords_that_all_refuse_are_not_tried_until_the_end(attempts: Attempts, settings: ClientSettings) -> None:
    attempts.failed(A, AuthenticationError("ERR invalid password"))
    with pytest.raises(AuthenticationError, match=r"10\.0\.0\.1:7711 answered: ERR invalid password"):
        attempts.pause(settings)


def test_one_other_failure_is_reason_enough_to_go_on(attempts: Attempts, settings: ClientSettings) -> None:
    attempts.failed(A, AuthenticationError("ERR invalid password"))
    attempts.failed(B, NotSent("refused"))
    assert attempts.pause(settings) > 0


@pytest.mark.parametrize("name", ["timeout", "hello_every", "follow_jobs", "follow_seconds"])
def test_settings_must_be_above_zero(name: str) -> None:
    with pytest.raises(CallerError, match=name):
        ClientSettings(connections=ConnectionSettings(), **{name: 0})
