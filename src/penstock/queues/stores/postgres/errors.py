"""What an error of psycopg means for the caller, and what to do about it.

| what happened | error |
|---|---|
| the server can't be reached, or the connection broke, and the call can be repeated | `ConnectionLost` |
| the connection broke under a call that may have been done, and must not be done twice | `OutcomeUnknown` |
| the server refuses: rights, disk, memory, a table that is not Keuss' | `StoreError` |
| a value that PostgreSQL can't store | `BadPayload` |
| a URL that libpq can't read | `BadUrl` |

Each text has the server's message, and then what to do.
"""

import re

import psycopg

from penstock.errors import BadPayload, BadUrl, ConnectionLost, OutcomeUnknown, PenstockError, StoreError
from penstock.queues.options import StoreURL

# Statements that collided with others: nothing was done, and they can be repeated.
COLLISIONS = frozenset({"40001", "40P01"})
SAME_KEY = "23505"  # a second row with one key
# Another session made the same thing at the same time.
MADE_BY_OTHERS = frozenset({SAME_KEY, "42P07", "42710"})
NO_TABLE = "42P01"
NOT_ALLOWED = "42501"
LOCKED = "55P03"

_ADVICE = {
    "25006": "The server is read-only: it is a standby, or set so. To find one that takes writes, add "
    "target_session_attrs=read-write to the URL.",
    "40001": "It collided with other statements too often: try again.",
    "40P01": "It collided with other statements too often: try again.",
    "53100": "The disk of the server is full: free space there.",
    "53200": "The server is out of memory.",
    "53300": "The server has no free connection: raise its max_connections, or lower connections= in the URLs.",
    "55P03": "Another session holds a lock: see pg_locks.",
    "57014": "The server cancelled it: is a statement_timeout set for this role, and too short?",
    NOT_ALLOWED: "The role needs CREATE on the schema, to make tables; or tables that others made, and SELECT, "
    "INSERT, UPDATE and DELETE on them (_k_tbl_QUEUE, penstock_*).",
    "3F000": "The search_path of this role has no schema that exists.",
    "08P01": "Is this a PostgreSQL server?",
}
_OTHER_FORM = "A table is not as Keuss 2.0.4 and later makes it: rename it, or use another database or schema."
_FORM_CODES = frozenset({NO_TABLE, "42703", "42804", "42883", "42P10", "42846", "42P13"})
_VALUE_CODES = frozenset({"22P05", "22P02", "22021", "22003", "22008", "54000", "54001"})
_CONNECTION_CODES = ("08", "57P")

# Errors of connecting. They have no codes, and messages in English. The class of the error says who must act.
_CONNECT_ERRORS: tuple[tuple[str, type[PenstockError], str], ...] = (
    (r"password authentication failed|no password supplied", StoreError, "Check user and password."),
    (
        r"no pg_hba\.conf entry",
        StoreError,
        "The pg_hba.conf of the server must allow this user, address and encryption.",
    ),
    (r'(database|role) ".*" does not exist', StoreError, "Check the user and the database, or create them."),
    (r"permission denied for database", StoreError, "The role needs CONNECT on this database."),
    (r"SSL|certificate|TLS", StoreError, "Check sslmode and the certificates."),
    (r"too many (clients|connections)|connection slots", ConnectionLost, _ADVICE["53300"]),
    (r"", ConnectionLost, "Is the server running, and the address right?"),
)


def code_of(problem: BaseException) -> str:
    """Return PostgreSQL's code of an error that `failed` made."""
    return getattr(problem.__cause__, "sqlstate", None) or ""


def unreadable(problem: psycopg.Error, address: StoreURL) -> BadUrl:
    """Return the error for a URL that libpq can't read. It quotes a piece of it, which may be one of the password."""
    message = " ".join(str(problem).split())
    if address.password:
        message = re.sub('"[^"]*"', '"..."', message)
    return BadUrl(f"{address.url} can't be read: {message}")


def failed_connect(problem: psycopg.Error, url: str) -> PenstockError:
    """Return the error for a connection that could not be opened."""
    message = " ".join(str(problem).split())
    if isinstance(problem, psycopg.ProgrammingError):
        return BadUrl(f"{url} can't be read: {message}")
    error, advice = next((error, advice) for pattern, error, advice in _CONNECT_ERRORS if re.search(pattern, message))
    return error(f"{url} can't be reached: {message}. {advice}")


def failed(problem: psycopg.Error, url: str, is_broken: bool, is_once: bool) -> PenstockError:
    """Return the error for a statement that failed. `is_once`: it must not be done twice."""
    message = " ".join(str(problem).split())
    code = problem.sqlstate or ""
    if is_broken or code.startswith(_CONNECTION_CODES):
        if is_once:
            return OutcomeUnknown(f"{url} went away before it answered: {message}. It may have been done or not.")
        return ConnectionLost(f"{url} went away: {message}. Try again when it is back.")
    if code in _VALUE_CODES or (not code and isinstance(problem, psycopg.DataError)):
        return BadPayload(f"PostgreSQL can't store this: {message}. Send it as bytes.")
    advice = _OTHER_FORM if code in _FORM_CODES else _ADVICE.get(code, "")
    return StoreError(f"{url} refused: {message}. {advice}".rstrip())
