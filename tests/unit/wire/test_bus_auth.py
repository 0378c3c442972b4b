"""Two sides of a link that show each other the cluster's secret, with the bytes between them cut anywhere."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterator

import pytest

from penstock.wire.bus_auth import ANSWER_BYTES, CHALLENGE_BYTES, PROOF_BYTES, Acceptor, AuthError, Connector

SECRET = b"correct horse battery staple"
NONCE_A = bytes(range(32))
NONCE_C = bytes(range(100, 132))
ID_A = b"a" * 40
ID_C = b"c" * 40


def pieces(data: bytes, size: int) -> Iterator[bytes]:
    for at in range(0, len(data), size):
        yield data[at : at + size]


def feed(side: Acceptor | Connector, data: bytes, size: int = 1000) -> bytes:
    return b"".join([side.feed(piece) for piece in pieces(data, size)])


@pytest.mark.parametrize("size", [1, 3, 31, 32, 33, 1000])
def test_sides_with_the_same_secret_agree_however_their_bytes_are_cut(size: int) -> None:
    acceptor, connector = Acceptor(SECRET, ID_A, NONCE_A), Connector(SECRET, ID_C, NONCE_C)
    assert connector.begin() == b""
    answer = feed(connector, acceptor.begin(), size)
    assert not connector.is_done
    proof = feed(acceptor, answer, size)
    assert acceptor.is_done
    assert feed(connector, proof, size) == b""
    assert connector.is_done


def test_what_is_said_is_what_the_description_says() -> None:
    acceptor, connector = Acceptor(SECRET, ID_A, NONCE_A), Connector(SECRET, ID_C, NONCE_C)
    challenge = acceptor.begin()
    assert challenge == b"PnS2" + ID_A + NONCE_A
    answer = connector.feed(challenge)
    both = ID_A + ID_C + NONCE_A + NONCE_C
    assert answer == ID_C + NONCE_C + hmac.new(SECRET, b"connect" + both, hashlib.sha256).digest()
    assert acceptor.feed(answer) == hmac.new(SECRET, b"accept" + both, hashlib.sha256).digest()
    assert [len(challenge), len(answer)] == [CHALLENGE_BYTES, ANSWER_BYTES]


def test_a_connector_with_another_secret_is_refused_and_told_nothing() -> None:
    acceptor, connector = Acceptor(SECRET, ID_A, NONCE_A), Connector(SECRET + b"!", ID_C, NONCE_C)
    with pytest.raises(AuthError, match="know our cluster-secret"):
        acceptor.feed(connector.feed(acceptor.begin()))
    assert not acceptor.is_done


def test_an_acceptor_with_another_secret_is_refused() -> None:
    connector = Connector(SECRET, ID_C, NONCE_C)
    connector.feed(Acceptor(SECRET + b"!", ID_A, NONCE_A).begin())
    false_proof = hmac.new(SECRET + b"!", b"accept" + ID_A + ID_C + NONCE_A + NONCE_C, hashlib.sha256).digest()
    with pytest.raises(AuthError, match="know our cluster-secret"):
        connector.feed(false_proof)
    assert not connector.is_done


@pytest.mark.parametrize("at", [0, 39, 40, 71, 72, 103])
def test_one_wrong_bit_is_enough(at: int) -> None:
    acceptor, connector = Acceptor(SECRET, ID_A, NONCE_A), Connector(SECRET, ID_C, NONCE_C)
    answer = bytearray(connector.feed(acceptor.begin()))
    answer[at] ^= 1
    with pytest.raises(AuthError):
        acceptor.feed(bytes(answer))


def test_an_answer_from_another_link_is_refused() -> None:
    answer = Connector(SECRET, ID_C, NONCE_C).feed(Acceptor(SECRET, ID_A, NONCE_A).begin())
    with pytest.raises(AuthError):
        Acceptor(SECRET, ID_A, bytes(32)).feed(answer)


def test_our_own_proof_sent_back_to_us_is_refused() -> None:
    connector = Connector(SECRET, ID_C, NONCE_C)
    answer = connector.feed(Acceptor(SECRET, ID_A, NONCE_A).begin())
    with pytest.raises(AuthError):
        connector.feed(answer[-PROOF_BYTES:])


def test_a_node_doesnt_answer_its_own_challenge() -> None:
    acceptor, itself = Acceptor(SECRET, ID_A, NONCE_A), Connector(SECRET, ID_A, NONCE_C)
    with pytest.raises(AuthError, match="id of this node"):
        itself.feed(acceptor.begin())


def test_a_challenge_under_another_id_gets_an_answer_that_is_of_no_use() -> None:
    acceptor, itself = Acceptor(SECRET, ID_A, NONCE_A), Connector(SECRET, ID_A, NONCE_C)
    answer = itself.feed(b"PnS2" + ID_C + NONCE_A)
    with pytest.raises(AuthError, match="id of this node"):
        acceptor.feed(answer)
    with pytest.raises(AuthError, match="know our cluster-secret"):
        Acceptor(SECRET, ID_A, NONCE_A).feed(ID_C + answer[40:])


def test_a_node_of_the_older_protocol_is_named_as_such() -> None:
    with pytest.raises(AuthError, match="older version"):
        Connector(SECRET, ID_C, NONCE_C).feed(b"PnsK" + NONCE_A)


def test_nothing_may_follow_an_answer_before_it_is_accepted() -> None:
    acceptor, connector = Acceptor(SECRET, ID_A, NONCE_A), Connector(SECRET, ID_C, NONCE_C)
    answer = connector.feed(acceptor.begin())
    with pytest.raises(AuthError, match="before its proof was answered"):
        acceptor.feed(answer + b"D")
    assert not acceptor.is_done


def test_nothing_may_follow_a_challenge_or_the_last_proof() -> None:
    with pytest.raises(AuthError, match="more than its challenge"):
        Connector(SECRET, ID_C, NONCE_C).feed(Acceptor(SECRET, ID_A, NONCE_A).begin() + b"D")
    acceptor, connector = Acceptor(SECRET, ID_A, NONCE_A), Connector(SECRET, ID_C, NONCE_C)
    proof = acceptor.feed(connector.feed(acceptor.begin()))
    with pytest.raises(AuthError):
        connector.feed(proof + b"D")


def test_a_node_without_a_secret_is_noticed_from_its_first_byte_on() -> None:
    with pytest.raises(AuthError, match="doesn't ask"):
        Connector(SECRET, ID_C, NONCE_C).feed(b"D")


def test_a_message_in_place_of_an_answer_is_refused() -> None:
    with pytest.raises(AuthError):
        Acceptor(SECRET, ID_A, NONCE_A).feed(b"DbuZ" + bytes(140))
