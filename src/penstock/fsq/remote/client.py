"""One HTTP request for each call. Loaded by those who call only: what it needs takes longer to load than the rest."""

from __future__ import annotations

import gzip
import http.client
import json
import zlib
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

TIMEOUT_SECONDS = 60.0  # without an answer by then, the server is given up
REPLY_BYTES_MAX = 1 << 20  # a reply is an id or an error
CONTENT_TYPE = "application/json-rpc"


class RemoteError(ValueError):
    """The server refused, or answered something else than JSON-RPC."""


def call(address: str, method: str, params: list[Any] | dict[str, Any], token: str | None = None) -> Any:
    """Call a method of the server at http://host:port/path, and return its result; ValueError for its error."""
    url = urlsplit(address)
    kind = {"http": http.client.HTTPConnection, "https": http.client.HTTPSConnection}.get(url.scheme)
    if kind is None or not url.hostname:
        raise ValueError(f"an address must be http://host:port/path, got {without_token(address)!r}")
    headers = {"Content-Type": CONTENT_TYPE, "Accept-Encoding": "gzip"}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    body = json.dumps({"jsonrpc": "2.0", "method": method, "params": params, "id": uuid4().hex})
    connection = kind(url.hostname, url.port, timeout=TIMEOUT_SECONDS)
    try:
        connection.request("POST", url.path or "/", body.encode(), headers)
        response = connection.getresponse()
        data = response.read(REPLY_BYTES_MAX)
        if response.status != http.client.OK:
            raise RemoteError(f"{response.status} {response.reason}")
        return _result(_plain(data, response.getheader("Content-Encoding", "")))
    except http.client.HTTPException as error:
        raise RemoteError(f"the reply is not valid HTTP: {type(error).__name__}") from error
    finally:
        connection.close()


def _plain(data: bytes, encoding: str) -> bytes:
    if encoding != "gzip":
        return data
    try:
        return gzip.decompress(data)
    except (OSError, EOFError, zlib.error) as error:
        raise RemoteError("the reply can't be unpacked") from error


def _result(data: bytes) -> Any:
    """Take the result out of a reply; `error: null` and no version are as good as anything."""
    try:
        reply = json.loads(data)
    except RecursionError as error:
        raise RemoteError("the reply is not JSON") from error
    if not isinstance(reply, dict) or ("result" not in reply and not reply.get("error")):
        raise RemoteError("the reply is not JSON-RPC")
    problem = reply.get("error")
    if problem:
        raise RemoteError(str(problem.get("message") if isinstance(problem, dict) else problem))
    return reply["result"]


def without_token(address: str) -> str:
    """Return the address for a message: its path may be a secret, and so may what stands before an `@`."""
    url = urlsplit(address)
    return f"{url.scheme}://{url.netloc.rpartition('@')[2]}"
