"""Whatever keeps a node from answering is told with its address, and with what to do."""

from __future__ import annotations

import pytest

from penstock.cli.cluster.access import Access, at_each, one_line
from penstock.cli.cluster.view import ask, view_cluster
from penstock.client.addresses import Address
from penstock.errors import PeerError
from tests.unit.client.scripted_server import Answer, Scripted, always, server

ME = "a" * 40
OTHER = "b" * 40


def bulk(text: str) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(text), text.encode())


def node(nodes: str, info: str = "registered_jobs:3\r\n") -> Answer:
    """A node that says this about itself and others."""

    def answer(request: list[bytes]) -> bytes:
        if request[0] == b"CONFIG":
            return b"-ERR unknown command 'CONFIG'\r\n"
        if request[0] == b"JSCAN":
            return b"*2\r\n$1\r\n0\r\n*2\r\n$1\r\nx\r\n$1\r\ny\r\n"
        return bulk(nodes if request[-1] == b"NODES" else info)

    return answer


def place(peer: Scripted) -> Address:
    return Address("127.0.0.1", peer.port)


@pytest.mark.parametrize(
    ("reply", "hint"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "add --tls"),
        (b"-ERR unknown command 'CLUSTER'\r\n", "not a Penstock or Disque node: it answered ERR unknown command"),
        (b"-ERR This instance has cluster support disabled\r\n", "not a Penstock or Disque node"),
        (b"+OK\r\n", "not a Penstock or Disque node: it answered OK"),
        (b"-NOAUTH Authentication required.\r\n", "NOAUTH Authentication required. Use --password"),
        (b"-LOADING Disque is loading the dataset in memory\r\n", "LOADING"),
        (b"-DENIED Disque is running in protected mode\r\n", "DENIED"),
    ],
)
def test_what_answers_otherwise_than_a_node_is_named(reply: bytes, hint: str) -> None:
    with server(always(reply)) as peer:
        with pytest.raises(PeerError) as told:
            ask(Access(), place(peer))
        assert str(place(peer)) in str(told.value)
        assert hint in str(told.value)


def test_a_node_that_hangs_up_may_want_tls() -> None:
    with server(lambda _request: None) as peer, pytest.raises(PeerError, match="If it speaks TLS there, add --tls"):
        ask(Access(), place(peer))


def test_a_wrong_password_is_distinguished_from_a_missing_one() -> None:
    with server(always(b"-ERR invalid password\r\n")) as peer, pytest.raises(PeerError, match="invalid password Use"):
        ask(Access("wrong"), place(peer))


def test_a_node_without_a_password_is_asked_without_one() -> None:
    talk = node(f"{ME} :7711 myself 0 0 connected\n")

    def answer(request: list[bytes]) -> bytes | None:
        if request[0] == b"AUTH":
            return b"-ERR Client sent AUTH, but no password is set\r\n"
        return talk(request)

    with server(answer) as peer:
        assert ask(Access("unneeded"), place(peer)).id == ME


def test_acked_jobs_are_counted_only_where_that_is_asked_for_and_not_too_much() -> None:
    with server(node(f"{ME} :7711 myself 0 0 connected\n")) as peer:
        assert ask(Access(), place(peer)).acked is None
        assert ask(Access(), place(peer), count_acked=True).acked == 2
    with server(node(f"{ME} :7711 myself 0 0 connected\n", "registered_jobs:1000000\r\n")) as peer:
        assert ask(Access(), place(peer), count_acked=True).acked is None


def test_a_node_that_counts_its_acked_jobs_itself_may_have_any_number_of_them() -> None:
    info = "registered_jobs:1000000\r\ncluster_acked_jobs:30000\r\n"
    with server(node(f"{ME} :7711 myself 0 0 connected\n", info)) as peer:
        assert ask(Access(), place(peer), count_acked=True).acked == 30_000


def test_an_address_where_another_node_answers_is_reported() -> None:
    with server(node(f"{OTHER} :7711 myself 0 0 connected\n")) as other:
        lines = f"{ME} :7711 myself 0 0 connected\n{'c' * 40} 127.0.0.1:{other.port} noflags 0 0 connected\n"
        with server(node(lines)) as peer:
            seen = view_cluster(Access(), place(peer))
    assert [member.problem for member in seen.silent] == ["another node answers there: bbbbbbbb"]


def test_nodes_that_only_others_know_are_asked_too() -> None:
    with server(node(f"{OTHER} :1 myself 0 0 connected\n")) as last:
        middle_lines = f"{'c' * 40} :1 myself 0 0 connected\n{OTHER} 127.0.0.1:{last.port} noflags 0 0 connected\n"
        with server(node(middle_lines)) as middle:
            lines = f"{ME} :7711 myself 0 0 connected\n{'c' * 40} 127.0.0.1:{middle.port} noflags 0 0 connected\n"
            with server(node(lines)) as first:
                seen = view_cluster(Access(), place(first))
    assert {member.id: member.link for member in seen.members} == {ME: "itself", "c" * 40: "up", OTHER: "unknown"}
    assert len(seen.answering) == 3


def test_a_handshake_is_a_note_and_no_member() -> None:
    lines = f"{ME} :7711 myself 0 0 connected\n{OTHER} 127.0.0.1:1 handshake 0 0 connected\n"
    with server(node(lines)) as peer:
        seen = view_cluster(Access(), place(peer))
        assert len(seen.members) == 1
        assert seen.notes == [f"{place(peer)} is in a handshake with 127.0.0.1:1."]


def test_one_of_many_that_fails_is_its_own_result() -> None:
    def work(address: Address) -> int:
        if address.port == 2:
            raise PeerError("no\nadvice")
        return address.port

    results = at_each(work, [Address("a", 1), Address("a", 2), Address("a", 1)])
    assert list(results) == [Address("a", 1), Address("a", 2)]
    assert results[Address("a", 1)] == 1
    failure = results[Address("a", 2)]
    assert isinstance(failure, PeerError)
    assert one_line(failure) == "no"
