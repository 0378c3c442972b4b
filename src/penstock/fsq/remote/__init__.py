"""Items to other machines: JSON-RPC over HTTP.

`push` sends an item to the server (`fsq jsonrpcd`) of another machine, which puts it under the same name into one of
its queues. A lost reply does no harm: sending again changes nothing. The item stays where it is at the sender;
whoever pushes completes it.
"""

from __future__ import annotations

from typing import Any

from penstock.fsq.constants import coerce_text, text_of
from penstock.fsq.errors import FSQCoerceError, FSQError, FSQPushError, FSQRemoteTriggerError
from penstock.fsq.items import FSQWorkItem
from penstock.fsq.remote import v1

__all__ = ["push", "remote_trigger_pull", "v1"]


def push(item: FSQWorkItem, address: str, queue: str, protocol: str = "jsonrpc", token: str | None = None) -> str:
    """Send an item to the server at an address, into a queue there; return its id."""
    _check(protocol)
    if item.item is None:
        raise FSQPushError(f"{item.id} is not open, so there is nothing to send")
    item.item.seek(0)
    try:
        data = coerce_text(item.item.read())
    except FSQCoerceError as error:
        raise FSQPushError(f"the data of {item.id} is not text in {text_of('FSQ_CHARSET')}") from error
    what = f"cannot push {item.id}"
    return str(_call(FSQPushError, what, address, "enqueue", [item.id, queue, data], token))


def remote_trigger_pull(
    address: str, queue: str, ignore_listener: bool = False, protocol: str = "jsonrpc", token: str | None = None
) -> None:
    """Pull the trigger of a queue at another machine."""
    _check(protocol)
    named = {"queue": queue, "ignore_listener": ignore_listener, "trigger": text_of("FSQ_TRIGGER")}
    what = f"cannot pull the trigger of {queue}"
    _call(FSQRemoteTriggerError, what, address, "trigger_pull", named, token)


def _call(
    kind: type[FSQError], what: str, address: str, method: str, params: list[Any] | dict[str, Any], token: str | None
) -> Any:
    from penstock.fsq.remote import client  # noqa: PLC0415 - HTTP is slow to load, and most never need it

    try:
        return client.call(address, method, params, token)
    except (OSError, ValueError) as error:
        raise kind(f"{what} at {client.without_token(address)}: {error}") from error


def _check(protocol: str) -> None:
    if protocol != "jsonrpc":
        raise ValueError(f"the protocol must be jsonrpc, got {protocol!r}")
