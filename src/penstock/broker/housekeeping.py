"""Looks after clients, some of them ten times a second: idle ones, those who don't read, and their buffers."""

from __future__ import annotations

import logging
from typing import Final

from penstock.broker.clients import Client
from penstock.broker.config import Config
from penstock.broker.core.node import Node

log = logging.getLogger("penstock")

CLIENTS_A_CRON: Final = 200  # clients looked at in one cron run
CLIENT_BYTES: Final = 3600  # a connection with its parser, buffers aside: measured with 10,000 of them


class Housekeeping:
    """Goes round all clients, again and again."""

    def __init__(self, clients: dict[int, Client], config: Config, node: Node) -> None:
        self._clients = clients
        self._config = config
        self._node = node
        self._left: list[Client] = []  # of this round
        self._buffer_bytes = 0

    def cron(self) -> None:
        """Close idle clients and those that don't read; account for buffers."""
        if not self._left:
            self._left = list(self._clients.values())
            self._account(sum(client_bytes(client) for client in self._left))
        now_ms, timeout_ms = self._node.now_ms, self._config.timeout * 1000
        hard, soft, soft_s = self._config.client_output_buffer_limit
        for client in self._left[-CLIENTS_A_CRON:]:
            is_idle = client.waiter is None and not client.is_monitor and now_ms - client.active_ms > timeout_ms
            if timeout_ms and is_idle:
                client.sink.close(now=True)
                continue
            owed = client.sink.buffered_bytes()
            if owed > soft > 0:
                client.over_soft_since_ms = client.over_soft_since_ms or now_ms
            else:
                client.over_soft_since_ms = 0
            too_long = client.over_soft_since_ms and now_ms - client.over_soft_since_ms >= soft_s * 1000
            if owed > hard > 0 or too_long:
                log.warning("closing client %s: it has not read %d bytes of replies", client.address, owed)
                client.sink.close(now=True)
        del self._left[-CLIENTS_A_CRON:]

    def _account(self, buffer_bytes: int) -> None:
        self._node.memory.used_bytes += buffer_bytes - self._buffer_bytes
        self._node.memory.base_bytes += buffer_bytes - self._buffer_bytes
        self._buffer_bytes = buffer_bytes


def client_bytes(client: Client) -> int:
    """Account for what a client keeps in memory."""
    return CLIENT_BYTES + client.sink.buffered_bytes() + client.sink.unread_bytes() + sum(map(len, client.out))
