"""`penstock cli --pipe`: sends commands in RESP from standard input, as fast as the node accepts them.

The end of the replies is found without parsing the commands: one more command is sent, a PING with a random message,
and its reply is the last one. (The original sent ECHO, which it did not have, and so always waited for its timeout.)
Reading and writing happen at the same time: a node that waits until replies are read must not wait until all is
written.
"""

import os
import secrets
import select
import socket
import ssl
import sys
import time
from typing import Any

from penstock.cli.shell.formats import printable
from penstock.cli.shell.options import ShellOptions
from penstock.cli.shell.session import connection, open_link
from penstock.client.connection import Decoder, encode, hiredis_decoder
from penstock.errors import ConnectionLost, ReplyError
from penstock.wire.reply_reader import NOTHING

BLOCK_BYTES = 128 * 1024
# What a non-blocking socket, plain or TLS, raises when it is not ready.
_NOT_NOW = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


def run(options: ShellOptions) -> int:
    """Transfer everything, then wait for the last reply; returns 1 if there were errors."""
    link = connection(options)
    open_link(link, options)
    address = link.address
    transfer = _Transfer(link.detach(), options.pipe_timeout_s)
    try:
        return transfer.run()
    except OSError as error:
        reason = error.strerror or error
        text = f"Lost the connection to {address} after {transfer.replies} replies: {reason}"
        raise ConnectionLost(text) from error


class _Transfer:
    """The state of one --pipe: what is not sent yet, and the replies."""

    def __init__(self, link: socket.socket, timeout_s: int) -> None:
        self.link, self.timeout_s = link, timeout_s
        self.decoder: Decoder = hiredis_decoder()
        self.token = secrets.token_hex(20).encode()
        self.unsent = memoryview(b"")
        self.all_read = self.done = False
        self.errors = self.replies = 0

    def run(self) -> int:
        self.link.setblocking(False)
        heard = time.monotonic()
        while not self.done:
            waiting_for_input = not self.unsent and not self.all_read
            sources: list[Any] = [self.link, 0] if waiting_for_input else [self.link]
            readable, _, _ = select.select(sources, [self.link] if self.unsent else [], [], 1.0)
            if self._receive():
                heard = time.monotonic()
            if 0 in readable:
                self._read_input()
                heard = time.monotonic()  # the timeout is for the node, not for a slow producer
            self._send()
            if waiting_for_input:
                heard = time.monotonic()
            elif self.timeout_s and time.monotonic() - heard > self.timeout_s:
                print(f"No replies for {self.timeout_s} seconds: exiting.", file=sys.stderr)
                self.errors += 1
                break
        print(f"errors: {self.errors}, replies: {self.replies}")
        return 1 if self.errors else 0

    def _read_input(self) -> None:
        block = os.read(0, BLOCK_BYTES)
        if not block:
            self.all_read = True
            # The empty line ends an inline command whose line end is missing, and has no effect otherwise.
            block = b"\r\n" + encode(("PING", self.token))
        self.unsent = memoryview(block)

    def _send(self) -> None:
        try:
            while self.unsent:
                self.unsent = self.unsent[self.link.send(self.unsent) :]
                if not self.unsent and self.all_read:
                    print("All data transferred. Waiting for the last reply...", flush=True)
        except _NOT_NOW:
            return

    def _receive(self) -> bool:
        """Read all replies that have arrived; returns whether there were any."""
        before = self.replies
        while not self.done:
            try:
                data = self.link.recv(BLOCK_BYTES)
            except _NOT_NOW:
                break
            if not data:
                raise ConnectionResetError("the server closed it")
            self.decoder.feed(data)
            while (reply := self.decoder.gets()) is not NOTHING:
                self._count(reply)
        return self.replies > before or self.done

    def _count(self, reply: object) -> None:
        if reply == self.token:
            self.done = True
            print("Last reply received from server.", flush=True)
            return
        self.replies += 1
        if isinstance(reply, ReplyError):
            self.errors += 1
            print(printable(str(reply)), file=sys.stderr)
