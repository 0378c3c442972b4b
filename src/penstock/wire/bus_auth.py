"""How two nodes prove to each other that they know the cluster's secret, before anything else is sent on a link.

    acceptor    `PnS2`, its node id, A: 32 random bytes
    connector   its node id, C: 32 random bytes, HMAC-SHA256(secret, "connect" acceptor's id, connector's id, A, C)
    acceptor    HMAC-SHA256(secret, "accept" acceptor's id, connector's id, A, C)

Then messages follow. The secret itself is never sent. Both sides contribute random bytes, so a proof is useless on
another link. Roles and ids are part of the proof, and a node refuses its own id on the other side, so an attacker can't
make a node answer its own challenge. An attempt without the secret shows only that there is one. Nothing may follow a
proof before it is answered, so bytes from an unauthenticated peer are never read as messages.

This authenticates the link when it opens. It neither encrypts nor signs what is sent later: against an attacker between
the nodes, or one that makes a node connect to them (CLUSTER MEET) and relays its bytes to another node, use TLS, which
works together with this.
"""

from __future__ import annotations

import hmac
from typing import Final

MARK: Final = b"PnS2"
OLDER_MARK: Final = b"PnsK"  # of a protocol without ids in the proof
NODE_ID_BYTES: Final = 40
NONCE_BYTES: Final = 32
PROOF_BYTES: Final = 32
CHALLENGE_BYTES: Final = len(MARK) + NODE_ID_BYTES + NONCE_BYTES
ANSWER_BYTES: Final = NODE_ID_BYTES + NONCE_BYTES + PROOF_BYTES


class AuthError(Exception):
    """The other side doesn't know the secret: the link has to be closed."""


def proof(secret: bytes, role: bytes, acceptor: bytes, connector: bytes) -> bytes:
    """Show that one knows the secret, for one link and one side of it. A side is its node id and its random bytes."""
    ids = acceptor[:NODE_ID_BYTES] + connector[:NODE_ID_BYTES]
    return hmac.digest(secret, role + ids + acceptor[NODE_ID_BYTES:] + connector[NODE_ID_BYTES:], "sha256")


def _side(node_id: bytes, nonce: bytes) -> bytes:
    assert len(node_id) == NODE_ID_BYTES
    assert len(nonce) == NONCE_BYTES
    return node_id + nonce


def _refuse_own_id(mine: bytes, theirs: bytes) -> None:
    if mine[:NODE_ID_BYTES] == theirs[:NODE_ID_BYTES]:
        raise AuthError("it has the id of this node: it is this node itself, or repeats what this node says")


class Acceptor:
    """The side that was called: it asks first."""

    def __init__(self, secret: bytes, node_id: bytes, nonce: bytes) -> None:
        self._secret = secret
        self._mine = _side(node_id, nonce)
        self._buffer = b""
        self.is_done = False

    def begin(self) -> bytes:
        """Return what is sent at once."""
        return MARK + self._mine

    def feed(self, data: bytes) -> bytes:
        """Take what arrived, and return what to answer; `is_done` says that all is well. Raises AuthError."""
        assert not self.is_done
        self._buffer += data
        if len(self._buffer) < ANSWER_BYTES:
            return b""
        if len(self._buffer) > ANSWER_BYTES:
            raise AuthError("it sent data before its proof was answered: it may have no cluster-secret")
        theirs, shown = self._buffer[:-PROOF_BYTES], self._buffer[-PROOF_BYTES:]
        _refuse_own_id(self._mine, theirs)
        if not hmac.compare_digest(shown, proof(self._secret, b"connect", self._mine, theirs)):
            raise AuthError("it doesn't know our cluster-secret")
        self.is_done = True
        return proof(self._secret, b"accept", self._mine, theirs)


class Connector:
    """The side that calls: it answers, and then wants an answer itself."""

    def __init__(self, secret: bytes, node_id: bytes, nonce: bytes) -> None:
        self._secret = secret
        self._mine = _side(node_id, nonce)
        self._buffer = b""
        self._expected = b""  # the proof of the other side, once we have answered
        self.is_done = False

    def begin(self) -> bytes:
        """Return what is sent at once: nothing."""
        return b""

    def feed(self, data: bytes) -> bytes:
        """Take what arrived, and return what to answer; `is_done` says that all is well. Raises AuthError."""
        assert not self.is_done
        self._buffer += data
        if self._expected:
            return self._check()
        begin = self._buffer[: len(MARK)]
        if begin == OLDER_MARK:
            raise AuthError("it runs an older version, whose proof is not accepted: update all nodes of the cluster")
        if not MARK.startswith(begin):
            raise AuthError("it doesn't ask for a cluster-secret, and we have one")
        if len(self._buffer) < CHALLENGE_BYTES:
            return b""
        if len(self._buffer) > CHALLENGE_BYTES:
            raise AuthError("it says more than its challenge")
        theirs = self._buffer[len(MARK) :]
        _refuse_own_id(self._mine, theirs)
        self._buffer = b""
        self._expected = proof(self._secret, b"accept", theirs, self._mine)
        return self._mine + proof(self._secret, b"connect", theirs, self._mine)

    def _check(self) -> bytes:
        if len(self._buffer) < PROOF_BYTES:
            return b""
        if not hmac.compare_digest(self._buffer, self._expected):
            raise AuthError("it doesn't know our cluster-secret")
        self.is_done = True
        return b""
