"""How two nodes show each other that they know the cluster's secret, before anything else is said on a link.

    acceptor    `PnsK`, A: 32 random bytes
    connector   C: 32 random bytes, HMAC-SHA256(secret, "connect" A C)
    acceptor    HMAC-SHA256(secret, "accept" A C)

Then the link is the bus. The secret itself never travels, and as both sides bring random bytes of their own, what was
said on one link is of no use on another. Whoever doesn't know the secret learns nothing by trying but that there is
one. Nothing may follow a proof before it is answered, so no byte of a stranger is ever taken for a message.

This keeps strangers out. It doesn't hide or seal what is said later: against somebody who sits between the nodes
there is TLS, under which this works as well.
"""

from __future__ import annotations

import hmac
from typing import Final

MARK: Final = b"PnsK"
NONCE_BYTES: Final = 32
PROOF_BYTES: Final = 32
CHALLENGE_BYTES: Final = len(MARK) + NONCE_BYTES
ANSWER_BYTES: Final = NONCE_BYTES + PROOF_BYTES


class AuthError(Exception):
    """The other side doesn't know the secret: the link has to be closed."""


def proof(secret: bytes, role: bytes, acceptor_nonce: bytes, connector_nonce: bytes) -> bytes:
    """Show that one knows the secret, for one link and one side of it."""
    return hmac.digest(secret, role + acceptor_nonce + connector_nonce, "sha256")


class Acceptor:
    """The side that was called: it asks first."""

    def __init__(self, secret: bytes, nonce: bytes) -> None:
        assert len(nonce) == NONCE_BYTES
        self._secret = secret
        self._nonce = nonce
        self._buffer = b""
        self.is_done = False

    def begin(self) -> bytes:
        """Give what is sent at once."""
        return MARK + self._nonce

    def feed(self, data: bytes) -> bytes:
        """Take what arrived, and give what to answer; `is_done` tells that all is well. Raises AuthError."""
        assert not self.is_done
        self._buffer += data
        if len(self._buffer) < ANSWER_BYTES:
            return b""
        if len(self._buffer) > ANSWER_BYTES:
            raise AuthError("it doesn't wait for its proof to be answered: it may have no cluster-secret")
        nonce, shown = self._buffer[:NONCE_BYTES], self._buffer[NONCE_BYTES:]
        if not hmac.compare_digest(shown, proof(self._secret, b"connect", self._nonce, nonce)):
            raise AuthError("it doesn't know our cluster-secret")
        self.is_done = True
        return proof(self._secret, b"accept", self._nonce, nonce)


class Connector:
    """The side that calls: it answers, and then wants an answer itself."""

    def __init__(self, secret: bytes, nonce: bytes) -> None:
        assert len(nonce) == NONCE_BYTES
        self._secret = secret
        self._nonce = nonce
        self._buffer = b""
        self._expected = b""  # the proof of the other side, once we have answered
        self.is_done = False

    def begin(self) -> bytes:
        """Give what is sent at once: nothing."""
        return b""

    def feed(self, data: bytes) -> bytes:
        """Take what arrived, and give what to answer; `is_done` tells that all is well. Raises AuthError."""
        assert not self.is_done
        self._buffer += data
        if self._expected:
            return self._check()
        if not MARK.startswith(self._buffer[: len(MARK)]):
            raise AuthError("it doesn't ask for a cluster-secret, and we have one")
        if len(self._buffer) < CHALLENGE_BYTES:
            return b""
        if len(self._buffer) > CHALLENGE_BYTES:
            raise AuthError("it says more than its challenge")
        theirs = self._buffer[len(MARK) :]
        self._buffer = b""
        self._expected = proof(self._secret, b"accept", theirs, self._nonce)
        return self._nonce + proof(self._secret, b"connect", theirs, self._nonce)

    def _check(self) -> bytes:
        if len(self._buffer) < PROOF_BYTES:
            return b""
        if not hmac.compare_digest(self._buffer, self._expected):
            raise AuthError("it doesn't know our cluster-secret")
        self.is_done = True
        return b""
