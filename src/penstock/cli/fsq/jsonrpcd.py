"""`fsq jsonrpcd`: takes items from other machines."""

import os
import sys
from pathlib import Path

from penstock.cli.fsq.call import PERM, BadValue, CommandCall, UsageError
from penstock.fsq.errors import FSQPathError
from penstock.fsq.path import valid_name
from penstock.fsq.remote import server

WORKERS = 5
LOOPBACK = "127.0.0.1"
TOKEN_LETTERS_MIN = 16  # long enough that it can't be guessed over a network
BODY_BYTES_LIMIT = 1 << 30


def jsonrpcd(call: CommandCall) -> int:
    """Serve until SIGTERM."""
    if not 1 <= len(call.words) <= 2:
        raise UsageError
    host = call.words[0] if len(call.words) == 2 else LOOPBACK
    port = call.words[-1]
    if not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise BadValue(f"the port must be 0 to 65535, got {port}", PERM)
    workers = call.number("workers", 1) or WORKERS
    if workers > server.WORKERS_MAX:
        raise BadValue(f"invalid argument for flag: --workers: at most {server.WORKERS_MAX}", PERM)
    body_bytes_max = call.number("max-bytes", 1) or server.BODY_BYTES_MAX
    if body_bytes_max > BODY_BYTES_LIMIT:
        raise BadValue(f"invalid argument for flag: --max-bytes: at most {BODY_BYTES_LIMIT}", PERM)
    # Each worker has its share, and room for one request at least.
    least_bytes = workers * body_bytes_max
    held_bytes_max = call.number("max-total-bytes", 1) or max(server.HELD_BYTES_MAX, least_bytes)
    if held_bytes_max < least_bytes:
        text = f"must be at least --workers times --max-bytes ({least_bytes}), got {held_bytes_max}"
        raise BadValue(f"invalid argument for flag: --max-total-bytes: {text}", PERM)
    queues = _queues(call)
    token = _token(call)
    try:
        listener = server.listen(host, int(port), token)
    except server.TokenNeeded:
        raise BadValue(
            f"{host} can be reached from other machines, so a token is needed: "
            f"{TOKEN_LETTERS_MIN} characters or more in FSQ_TOKEN or in --token-file",
            PERM,
        ) from None
    name = "{}:{}".format(*listener.getsockname()[:2])
    call.say(f"listening on {name} with {workers} workers")
    rules = server.AccessRules(
        host=host,
        token=token,
        body_bytes_max=body_bytes_max,
        held_bytes_max=held_bytes_max // workers,
        queues=queues,
    )
    log = (lambda text: call.say(f"{os.getpid()}: {text}")) if call.has("verbose") else None
    sys.stderr.flush()
    server.Parent(listener, rules, workers, log).run()
    return 0


def _queues(call: CommandCall) -> frozenset[str] | None:
    """Return the queues that may be filled; None for all."""
    names = call.options.get("queue")
    if names is None:
        return None
    try:
        return frozenset(map(valid_name, names))
    except FSQPathError as error:
        raise BadValue(f"invalid argument for flag: --queue: {error.strerror}", PERM) from None


def _token(call: CommandCall) -> str:
    path = call.value("token-file")
    if path is not None:
        lines = Path(path).read_text("utf-8").splitlines()
        token = lines[0].strip() if lines else ""
    else:
        token = os.environ.get("FSQ_TOKEN", "")
    if (path is not None or token) and not _is_token(token):
        raise BadValue(
            f"a token has {TOKEN_LETTERS_MIN} characters or more: letters, digits, `-`, `_`, `.` and `~`", PERM
        )
    return token


def _is_token(token: str) -> bool:
    """What can stand in a path and in a header as it is."""
    letters = token.replace("-", "").replace("_", "").replace(".", "").replace("~", "")
    return len(token) >= TOKEN_LETTERS_MIN and letters.isascii() and letters.isalnum()
