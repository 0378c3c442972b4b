"""JSON-RPC: bytes of a request to bytes of a reply, without I/O.

Replies have the shape of version 1.0 (always `result`, `error` and `id`), which every client takes; a request may be
of either version, or a batch. An error of ours becomes an `error` with its class and text, never a traceback.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from typing import Any

from penstock.fsq.errors import FSQError, describe
from penstock.fsq.remote import v1

BATCH_MAX = 100  # calls in one request: what the original's client sends is one
PARSE_ERROR, INVALID_REQUEST, NO_METHOD, INVALID_PARAMS, FAILED = -32700, -32600, -32601, -32602, -32603
_NAMES_MAX = 64  # of a method's name that is repeated in an error

Reply = dict[str, Any]


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
