"""What an error of psycopg means for the caller, and what is to be done about it.

| what happened | error |
|---|---|
| the server isn't there, or the link broke, and to ask again is harmless | `ConnectionLost` |
| the link broke under something that may have been done, and must not be done twice | `OutcomeUnknown` |
| the server refuses: rights, disk, memory, a table that is not Keuss' | `StoreError` |
| a value that PostgreSQL can't keep | `BadPayload` |
| a URL that libpq can't read | `BadUrl` |

Each text has the server's own words, and behind them what to do.
"""

import re

import psycopg

from penstock.errors import BadPayload, BadUrl, ConnectionLost, OutcomeUnknown, PenstockError, StoreError

# Two statements that got in each other's way: neither was done, and both may be tried again.
COLLISIONS = frozenset({"40001", "40P01"})
# Somebody else made the same thing at the same time.
MADE_BY_OTHERS = frozenset({"23505", "42P07", "42710"})
NO_TABLE = "42P01"
NOT_ALLOWED = "42501"
LOCKED = "55P03"

_ADVICE = {
    "25006": "The server takes no writes: it is a standby, or set to read only. Ask for one that does, with "
    "target_session_attrs=read-write in the URL.",
    "40001": "It collided with others too often: try again.",
    "40P01": "It collided with others too often: try again.",
    "53100": "Its disk is full: make room there.",
    "53200": "It is out of memory.",
    "53300": "It has no connection left: raise its max_connections, or lower connections= in the URLs of its users.",
    "55P03": "Somebody holds a lock: look into pg_locks.",
    "57014": "It was cancelled there: is a statement_timeout set for this role, and too short?",
    NOT_ALLOWED: "The role needs rights: CREATE on the schema, so that it can make tables, or tables that others made, "
    "and SELECT, INSERT, UPDATE and DELETE on them (_k_tbl_QUEUE, penstock_*).",
    "3F000": "The search_path of this role has no schema that exists.",
    "08P01": "Is this a PostgreSQL server?",
}
_OTHER_FORM = "A table that is not as Keuss 2.0.4 and later makes it: rename it, or use another database or schema."
_FORM_CODES = frozenset({NO_TABLE, "42703", "42804", "42883", "42P10", "42846", "42P13"})
_VALUE_CODES = frozenset({"22P05", "22P02", "22021", "22003", "22008", "54000", "54001"})
_LINK_CODES = ("08", "57P")

# What a server says to a stranger. It has no codes there, and these words in English. Who must act says which error.
_DOOR: tuple[tuple[str, type[PenstockError], str], ...] = (
    (r"password authentication failed|no password supplied", StoreError, "Check user and password."),
    (r"no pg_hba\.conf entry", StoreError, "The server lets nobody in from here with this user and encryption."),
    (r'(database|role) ".*" does not exist', StoreError, "Check the user and the database, or make them."),
    (r"permission denied for database", StoreError, "The role needs CONNECT on this database."),
    (r"SSL|certificate|TLS", StoreError, "Check sslmode and the certificates."),
    (r"too many (clients|connections)|connection slots", ConnectionLost, _ADVICE["53300"]),
    (r"", ConnectionLost, "Is the server up, and the address right?"),
)


def failed_connect(problem: psycopg.Error, url: str) -> PenstockError:
    """There is no connection."""
    words = " ".join(str(problem).split())
    if isinstance(problem, psycopg.ProgrammingError):
        return BadUrl(f"{url} can't be read: {words}")
    error, advice = next((error, advice) for pattern, error, advice in _DOOR if re.search(pattern, words))
    return error(f"{url} can't be reached: {words}. {advice}")


def failed(problem: psycopg.Error, url: str, is_broken: bool, is_once: bool) -> PenstockError:
    """A statement failed. `is_once`: it must not be done twice."""
    words = " ".join(str(problem).split())
    code = problem.sqlstate or ""
    if is_broken or code.startswith(_LINK_CODES):
        if is_once:
            return OutcomeUnknown(f"{url} went away before it answered: {words}. It may have been done, or not.")
        return ConnectionLost(f"{url} went away: {words}. Try again when it is back.")
    if code in _VALUE_CODES or (not code and isinstance(problem, psycopg.DataError)):
        return BadPayload(f"PostgreSQL can't keep this: {words}. Send bytes, for one.")
    advice = _OTHER_FORM if code in _FORM_CODES else _ADVICE.get(code, "")
    return StoreError(f"{url} refused: {words}. {advice}".rstrip())
