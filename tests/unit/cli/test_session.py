"""What the shell does when the link breaks: nothing is done twice that must not be."""

import pytest

from penstock.cli.shell.options import ShellOptions
from penstock.cli.shell.session import Session
from penstock.errors import ConnectionLost
from tests.unit.client.scripted_server import Scripted, always, server


def session(peer: Scripted) -> Session:
    return Session(ShellOptions(port=peer.port, output="raw"))


def test_a_link_that_broke_while_idle_costs_nothing_even_for_a_command_that_writes() -> None:
    with server(always(b"+OK\r\n")) as peer:
        user = session(peer)
        user.run([b"PING"])
        peer.hang_up()
        while user.link.alive():
            pass
        user.run([b"ADDJOB", b"q", b"b", b"0"])
        assert peer.requests == [[b"PING"], [b"ADDJOB", b"q", b"b", b"0"]]


def test_an_idle_break_is_noticed_before_a_command_that_writes_is_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with server(always(b"+OK\r\n")) as peer:
        user = session(peer)
        user.connect()
        looked: list[bool] = []
        monkeypatch.setattr(user.link, "alive", lambda: looked.append(True))
        user.run([b"ADDJOB", b"q", b"b", b"0"])
        assert looked == [True]


def test_a_command_that_writes_is_not_sent_again() -> None:
    answers = [None, b"+OK\r\n"]
    with server(lambda _request: answers.pop(0)) as peer:
        with pytest.raises(ConnectionLost):
            session(peer).run([b"ADDJOB", b"q", b"b", b"0"])
        assert len(peer.requests) == 1


@pytest.mark.parametrize("name", [b"nope", b"DEBUG"])
def test_neither_is_one_that_may_do_anything(name: bytes) -> None:
    answers = [None, b"+OK\r\n"]
    with server(lambda _request: answers.pop(0)) as peer, pytest.raises(ConnectionLost):
        session(peer).run([name, b"RESTART"])


def test_a_command_that_only_reads_is_sent_once_more(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    answers = [None, b":7\r\n"]
    with server(lambda _request: answers.pop(0)) as peer:
        session(peer).run([b"qlen", b"q"])
        assert peer.requests == [[b"qlen", b"q"]] * 2
    assert capsysbinary.readouterr().out == b"7\n"


def test_but_only_once() -> None:
    with server(lambda _request: None) as peer:
        with pytest.raises(ConnectionLost):
            session(peer).run([b"qlen", b"q"])
        assert len(peer.requests) == 2


def test_shutdown_closes_the_link_and_that_is_its_reply() -> None:
    with server(lambda _request: None) as peer:
        user = session(peer)
        user.run([b"SHUTDOWN"])
        assert not user.link.connected
        assert user.errors == 0


def test_an_interrupted_wait_closes_the_link_so_that_a_late_reply_is_not_taken_for_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with server(always(b"")) as peer:
        user = session(peer)
        monkeypatch.setattr(user.link, "receive", interrupt)
        with pytest.raises(KeyboardInterrupt):
            user.run([b"GETJOB", b"FROM", b"q"])
        assert not user.link.connected


def test_an_interrupted_monitor_ends_quietly_and_closes_the_link(
    monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    lines = [b"OK", b"a line"]

    def receive() -> bytes:
        if lines:
            return lines.pop(0)
        raise KeyboardInterrupt

    with server(always(b"")) as peer:
        user = session(peer)
        monkeypatch.setattr(user.link, "receive", receive)
        user.run([b"MONITOR"])
        assert not user.link.connected
    assert capsysbinary.readouterr().out == b"OK\na line\n"
