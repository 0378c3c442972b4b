"""`fsq jsonrpcd`: takes items from other machines."""

import os
import sys
from pathlib import Path

from penstock.cli.fsq.call import PERM, BadValue, Call, UsageError
from penstock.fsq.remote import server

WORKERS = 5
LOOPBACK = "127.0.0.1"
TOKEN_LETTERS_MIN = 16  # long enough that it can't be guessed over a network
BODY_BYTES_LIMIT = 1 << 30


def jsonrpcd(call: Call) -> int:
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
    token = _token(call)
    if not token and not server.is_loopback(host):
        raise BadValue(
            f"{host} can be reached from other machines, so a token is needed: "
            f"{TOKEN_LETTERS_MIN} characters or more in FSQ_TOKEN or in --token-file",
            PERM,
        )
    listener = server.listen(host, int(port))
    name = "{}:{}".format(*listener.getsockname()[:2])
    call.say(f"listening on {name} with {workers} workers")
    rules = server.Rules(host=host, token=token, body_bytes_max=body_bytes_max)
    log = (lambda text: call.say(f"{os.getpid()}: {text}")) if call.has("verbose") else None
    sys.stderr.flush()
    server.Parent(listener, rules, workers, log).run()
    return 0


def _token(call: Call) -> str:
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
