"""The server: HTTP, who may call, and JSON-RPC.

- It listens on loopback by default. On any other address it asks for a token, in `Authorization: Bearer` or
  as the path of the URL, since the original's client can send nothing else.
- Without a token, the `Host` of a request must be this machine's own loopback name, and the content type must be JSON:
  so no page in a browser of this machine can call us.
- Every request has a limit of size and of time, and the bodies that are being received have one together. What is
  refused is refused before its body is read, except for what exceeds the limit for all bodies.
- The queues that may be filled can be limited to a list.

JSON-RPC is bytes of a request to bytes of a reply, without I/O (`answer`). Replies have the shape of version 1.0
(always `result`, `error` and `id`), which every client takes; a request may be of either version, or a batch. An error
of ours becomes an `error` with its class and text, never a traceback.

A parent holds the socket and starts workers that share it. A worker that dies is replaced; SIGHUP replaces all of
them, SIGTERM ends them after the requests they are at.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import inspect
import ipaddress
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import FrameType
from typing import Any

from penstock.fsq.errors import FSQError, describe
from penstock.fsq.remote import v1

WORKERS_MAX = 256
HEAD_BYTES_MAX = 16 * 1024  # a request line and headers; no client of ours needs a tenth of it
BODY_BYTES_MAX = 64 * 1024 * 1024  # an item's data travels as one JSON text, and is in memory several times
HELD_BYTES_MAX = 512 * 1024 * 1024  # bodies that are being received, of all workers together
PIECE_BYTES = 64 * 1024  # of a body, read at a time
REQUEST_SECONDS_MAX = 60.0  # from the connection to the last byte of the body
CONNECTIONS_MAX = 256  # at a time, of a worker
RESTART_SECONDS = 0.5  # between the end of a worker and the next one: one that can't start must not spin
BACKLOG = 128
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGABRT)

BATCH_MAX = 100  # calls in one request: what the original's client sends is one
PARSE_ERROR, INVALID_REQUEST, NO_METHOD, INVALID_PARAMS, FAILED = -32700, -32600, -32601, -32602, -32603
_NAMES_MAX = 64  # of a method's name that is repeated in an error

Reply = dict[str, Any]

_TYPES = ("application/json-rpc", "application/json", "application/jsonrequest")
_REASONS = {
    200: "OK",
    204: "No Content",
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    405: "Method Not Allowed",
    408: "Request Timeout",
    411: "Length Required",
    413: "Content Too Large",
    415: "Unsupported Media Type",
    503: "Service Unavailable",
}


@dataclass(frozen=True)
class AccessRules:
    """Who may call, and how much."""

    host: str
    token: str = ""
    body_bytes_max: int = BODY_BYTES_MAX
    held_bytes_max: int = HELD_BYTES_MAX  # of one worker
    seconds_max: float = REQUEST_SECONDS_MAX
    queues: frozenset[str] | None = None  # that may be filled; None: all


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class TokenNeeded(Exception):
    """An address that other machines can reach, without a token."""


class RequestRefused(Exception):
    """A request that is answered by a status alone."""

    def __init__(self, status: int) -> None:
        super().__init__(_REASONS[status])
        self.status = status


@dataclass
class HttpRequest:
    """A request line and its headers."""

    method: str
    path: str
    headers: dict[str, str]


def read_head(data: bytes) -> HttpRequest:
    """Parse a request's head; RequestRefused if it is not valid."""
    lines = data.decode("latin-1").split("\r\n")
    words = lines[0].split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        raise RequestRefused(400)
    headers: dict[str, str] = {}
    for line in lines[1:]:
        if not line:
            continue
        name, colon, value = line.partition(":")
        name = name.lower()
        # Two lengths, or a length that hides behind a blank, are how requests are smuggled.
        if not colon or name != name.strip() or name in headers:
            raise RequestRefused(400)
        headers[name] = value.strip()
    return HttpRequest(words[0], words[1], headers)


def check(request: HttpRequest, rules: AccessRules) -> int:
    """Return the length of the body of a request that may be served; RequestRefused for all others."""
    if request.method != "POST":
        raise RequestRefused(405)
    if rules.token:
        if not _has_token(request, rules.token):
            raise RequestRefused(401)
    elif not _is_own_name(request.headers.get("host", ""), rules.host):
        raise RequestRefused(403)
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() not in _TYPES:
        raise RequestRefused(415)
    if "transfer-encoding" in request.headers:
        raise RequestRefused(411)
    length = request.headers.get("content-length", "")
    if not (length.isascii() and length.isdigit()):
        raise RequestRefused(411)
    if len(length) > 12 or int(length) > rules.body_bytes_max:
        raise RequestRefused(413)
    return int(length)


def _has_token(request: HttpRequest, token: str) -> bool:
    kind, _, given = request.headers.get("authorization", "").partition(" ")
    wanted = token.encode()
    by_header = kind.lower() == "bearer" and hmac.compare_digest(given.strip().encode("latin-1"), wanted)
    by_path = hmac.compare_digest(request.path.partition("?")[0].strip("/").encode("latin-1"), wanted)
    return by_header or by_path


def _is_own_name(host: str, bound: str) -> bool:
    if host.startswith("["):
        name = host[1:].partition("]")[0]
    else:
        name = host.rpartition(":")[0] if ":" in host else host
    return name == bound.strip("[]") or is_loopback(name)


class RequestHandler:
    """Serves the connections of one worker."""

    def __init__(self, rules: AccessRules, log: Callable[[str], None] | None = None) -> None:
        self._rules = rules
        self._log = log
        self._methods = v1.methods_for(rules.queues)
        self._held_bytes = 0  # of bodies that are being received
        self._open = 0
        self.idle = asyncio.Event()
        self.idle.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request, and close."""
        self._open += 1
        self.idle.clear()
        try:
            status, body = await self._answer(reader)
            writer.write(response(status, body))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._rules.seconds_max):
                    await writer.drain()
        except OSError:
            pass  # it has hung up
        finally:
            writer.close()
            self._open -= 1
            if not self._open:
                self.idle.set()

    async def _answer(self, reader: asyncio.StreamReader) -> tuple[int, bytes]:
        try:
            if self._open > CONNECTIONS_MAX:
                raise RequestRefused(503)
            async with asyncio.timeout(self._rules.seconds_max):
                request = read_head(await reader.readuntil(b"\r\n\r\n"))
                body = await self._body(reader, check(request, self._rules))
        except RequestRefused as refused:
            self._note(f"refused: {refused}")
            return refused.status, b""
        except TimeoutError:
            return 408, b""
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            return 400, b""
        reply = answer(body, self._methods)
        self._note(f"served {len(body)} bytes")
        return (200, reply) if reply else (204, b"")

    async def _body(self, reader: asyncio.StreamReader, length: int) -> bytes:
        """Read a body; what has arrived counts, not what was announced: that would cost a caller nothing."""
        body = bytearray()
        try:
            while len(body) < length:
                piece = await reader.read(min(length - len(body), PIECE_BYTES))
                if not piece:
                    raise asyncio.IncompleteReadError(b"", length)
                if self._held_bytes + len(piece) > self._rules.held_bytes_max:
                    raise RequestRefused(503)
                self._held_bytes += len(piece)
                body += piece
            return bytes(body)
        finally:
            self._held_bytes -= len(body)

    def _note(self, text: str) -> None:
        if self._log is not None:
            self._log(text)


def response(status: int, body: bytes) -> bytes:
    """Make the bytes of a response."""
    head = [
        f"HTTP/1.1 {status} {_REASONS[status]}",
        "Content-Type: application/json-rpc",
        f"Content-Length: {len(body)}",
        "Connection: close",
        *(["Allow: POST"] if status == 405 else []),
    ]
    return "\r\n".join([*head, "", ""]).encode() + body


async def work(listener: socket.socket, rules: AccessRules, log: Callable[[str], None] | None = None) -> None:
    """Serve until SIGTERM or SIGHUP; a request that is under way is answered first."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, ended.set)
    handler = RequestHandler(rules, log)
    server = await asyncio.start_server(handler.serve, sock=listener, limit=HEAD_BYTES_MAX)
    await ended.wait()
    server.close()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(rules.seconds_max):
            await handler.idle.wait()


def listen(host: str, port: int, token: str) -> socket.socket:
    """Bind the address that a name stands for; TokenNeeded if others can reach it and there is no token."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    if not token and not is_loopback(str(address[0])):
        raise TokenNeeded(host)
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except BaseException:
        listener.close()
        raise
    listener.setblocking(False)
    return listener


class Parent:
    """Keeps a number of workers running."""

    def __init__(
        self, listener: socket.socket, rules: AccessRules, workers: int, log: Callable[[str], None] | None = None
    ) -> None:
        if not 1 <= workers <= WORKERS_MAX:
            raise ValueError(f"workers must be 1 to {WORKERS_MAX}, got {workers}")
        self._listener = listener
        self._rules = rules
        self._wanted = workers
        self._log = log
        self._started: dict[int, float] = {}  # of each worker, by its process id
        self._ending = False

    def run(self) -> None:
        """Serve until SIGTERM, SIGINT or SIGABRT."""
        handlers: dict[signal.Signals, Callable[[int, FrameType | None], None]] = {
            signal.SIGTERM: self._end,
            signal.SIGINT: self._end,
            signal.SIGABRT: self._end,
            signal.SIGHUP: self._renew,
        }
        before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        try:
            while not self._ending:
                while len(self._started) < self._wanted and not self._ending:
                    self._start()
                self._wait_for_one()
            while self._started:
                self._wait_for_one()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _start(self) -> None:
        # A signal that comes in between must neither reach the child's copy of our handlers nor miss the child.
        held = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        pid = os.fork()
        if pid:
            self._started[pid] = time.monotonic()
            signal.pthread_sigmask(signal.SIG_SETMASK, held)
            return
        status = 1
        try:
            for number in _SIGNALS:
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, held)
            asyncio.run(work(self._listener, self._rules, self._log))
            status = 0
        finally:
            sys.stderr.flush()
            os._exit(status)

    def _wait_for_one(self) -> None:
        try:
            pid, _ = os.waitpid(-1, 0)
        except ChildProcessError:
            self._started.clear()
            return
        lived = time.monotonic() - self._started.pop(pid, 0.0)
        if lived < RESTART_SECONDS and not self._ending:
            time.sleep(RESTART_SECONDS)

    def _end(self, number: int, frame: FrameType | None) -> None:
        self._ending = True
        self._tell_all(signal.SIGTERM)

    def _renew(self, number: int, frame: FrameType | None) -> None:
        self._tell_all(signal.SIGHUP)

    def _tell_all(self, number: int) -> None:
        for pid in list(self._started):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


def answer(body: bytes, methods: Mapping[str, Callable[..., Any]] = v1.METHODS) -> bytes:
    """Do what a request asks for; empty for notifications."""
    try:
        request = json.loads(body)
    except (ValueError, RecursionError):
        return _dumped(_error(None, PARSE_ERROR, "the request is not JSON"))
    if isinstance(request, list):
        if not 0 < len(request) <= BATCH_MAX:
            return _dumped(_error(None, INVALID_REQUEST, f"a batch has 1 to {BATCH_MAX} calls"))
        replies = [reply for one in request if (reply := _call(one, methods)) is not None]
        return _dumped(replies) if replies else b""
    reply = _call(request, methods)
    return b"" if reply is None else _dumped(reply)


def _call(request: Any, methods: Mapping[str, Callable[..., Any]]) -> Reply | None:
    if not isinstance(request, dict):
        return _error(None, INVALID_REQUEST, "a call is an object")
    number = request.get("id")
    if isinstance(number, list | dict):
        return _error(None, INVALID_REQUEST, "an id is a text or a number")
    reply = _done(number, request.get("method"), request.get("params", []), methods)
    is_notification = "jsonrpc" in request and "id" not in request
    return None if is_notification else reply


def _done(number: Any, method: Any, params: Any, methods: Mapping[str, Callable[..., Any]]) -> Reply:
    if not isinstance(method, str) or not isinstance(params, list | dict):
        return _error(number, INVALID_REQUEST, "a call has a method, and a list or an object of params")
    function = methods.get(method) or _introspection(method, methods)
    if function is None:
        return _error(number, NO_METHOD, f"no method {method[:_NAMES_MAX]!r}")
    positional, named = (params, {}) if isinstance(params, list) else ([], params)
    try:
        inspect.signature(function).bind(*positional, **named)
    except TypeError as error:
        return _error(number, INVALID_PARAMS, f"{method}: {error}")
    try:
        return {"result": function(*positional, **named), "error": None, "id": number}
    except (FSQError, TypeError, ValueError) as error:
        return _error(number, FAILED, f"{type(error).__name__}: {describe(error)}")
    except Exception as error:
        # Whatever it is, the other machine gets an answer, and the server goes on.
        return _error(number, FAILED, type(error).__name__)


def _introspection(method: str, methods: Mapping[str, Callable[..., Any]]) -> Callable[..., Any] | None:
    def list_methods() -> list[str]:
        return sorted([*methods, "system.listMethods", "system.methodHelp", "system.methodSignature"])

    def method_help(name: str) -> str:
        return inspect.getdoc(methods[name]) or "" if name in methods else ""

    def method_signature(name: str) -> list[str]:
        return list(inspect.signature(methods[name]).parameters) if name in methods else []

    functions: dict[str, Callable[..., Any]] = {
        "system.listMethods": list_methods,
        "system.methodHelp": method_help,
        "system.methodSignature": method_signature,
    }
    return functions.get(method)


def _error(number: Any, code: int, message: str) -> Reply:
    return {"result": None, "error": {"code": code, "message": message}, "id": number}


def _dumped(value: Any) -> bytes:
    return json.dumps(value).encode()
