"""What goes to PostgreSQL and comes back, without a server: records, names, the start of a scan, and errors."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.codec import decode, encode
from penstock.errors import BadPayload, BadUrl, ConnectionLost, OutcomeUnknown, StoreError
from penstock.job import LIVE, JobMove, Lease, NewJob
from penstock.queues.lease_token import LeaseToken
from penstock.queues.stores.postgres.element import (
    ELEMENT_BYTES_MAX,
    id_batch,
    lease_batch,
    move_batch,
    packed,
    unpacked,
)
from penstock.queues.stores.postgres.names import channel_name, index_of, other_index_of, quoted, table_of
from penstock.queues.stores.postgres.sql import BEGINNING_US, SETTINGS, ScanStart, Statements
from tests.processes import need_module

problems = pytest.importorskip("penstock.queues.stores.postgres.errors")


def job(payload: Any, **fields: Any) -> NewJob:
    return NewJob(payload, encode(payload), id="id", **fields)


@pytest.mark.parametrize(
    ("given", "record"),
    [
        (job({"a": [1]}), '{"i":"id","p":{"payload":{"a":[1]},"hdrs":{}}}'),
        (job(b"\x00\xff"), '{"i":"id","p":{"payload":"AP8=","hdrs":{},"type":"buffer"}}'),
        (job("text", headers={"h": 1}), '{"i":"id","p":{"payload":"text","hdrs":{"h":1}}}'),
        (job(1, delay_ms=5, tries=2), '{"i":"id","p":{"payload":1,"hdrs":{}},"d":5,"t":2}'),
        (job(1, delay_ms=5, mature_ms=7), '{"i":"id","p":{"payload":1,"hdrs":{}},"u":7000}'),
        (job(1, unique='k"', unique_for_ms=9), '{"i":"id","p":{"payload":1,"hdrs":{}},"k":"k\\"","f":9}'),
        (NewJob("bare", b"bare", id="id"), '{"i":"id","p":{"payload":"bare","hdrs":{}}}'),
    ],
)
def test_a_record(given: NewJob, record: str) -> None:
    assert packed(given) == record
    json.loads(record)


@pytest.mark.parametrize("payload", ["\0", ["\ud800"], {"\0": 1}, {"a": {"b": "\udfff"}}, "\\\0", "é\ud800"])
def test_what_jsonb_has_no_characters_for_is_kept_as_bytes_and_refused_in_headers(payload: Any) -> None:
    record = json.loads(packed(job(payload)))
    kept, _ = unpacked(json.dumps(record["p"]))
    assert isinstance(kept, bytes)
    assert decode(kept) == payload
    with pytest.raises(BadPayload, match="must be text without zero bytes"):
        packed(job(1, headers={"h": payload}))


@pytest.mark.parametrize("payload", ["[" * 100_000 + "]" * 100_000, "9" * 5000])
def test_what_python_can_not_read_comes_as_bytes(payload: str) -> None:
    element = f'{{"payload":{payload},"hdrs":{{}}}}'
    assert unpacked(element) == (element.encode(), {})


@pytest.mark.parametrize("payload", ["\\u0000", "\\\\u0000", "\x01\x1f", "🎉", "\\ud800", {"\\u0000": ["\\\\"]}])
def test_what_only_looks_like_that_is_not(payload: Any) -> None:
    element = json.dumps(json.loads(packed(job(payload)))["p"])
    assert unpacked(element)[0] == payload


@pytest.mark.parametrize("number", [1e16, 1e23, -1.5e300, 1.7976931348623157e308])
def test_a_large_float_is_written_with_a_fraction(number: float) -> None:
    text = packed(job(["1e+30", number, {"e+": '\\"2e+20'}]))
    assert "e+" not in text.replace('"1e+30"', "").replace('"e+"', "").replace("2e+20", "")
    assert json.loads(text)["p"]["payload"] == ["1e+30", number, {"e+": '\\"2e+20'}]
    assert isinstance(json.loads(text)["p"]["payload"][1], float)


def test_what_is_too_large_is_refused() -> None:
    with pytest.raises(BadPayload, match="keep it elsewhere"):
        packed(NewJob([], b"0" * (ELEMENT_BYTES_MAX + 1), id="id"))
    with pytest.raises(BadPayload, match="headers"):
        packed(job(1, headers={"h": "x" * 70_000}))


def test_a_token_is_read_as_it_was_written() -> None:
    token = LeaseToken(1_700_000_000_123_456, 3, 1_600_000_000_000_001)
    assert LeaseToken.read(str(token)) == token
    for wrong in (None, "", "1", "1.2", "1.2.3.4", "a.b.c", "1..3"):
        assert LeaseToken.read(wrong) is None


def test_leases_are_sorted_and_those_that_can_not_be_are_left_out() -> None:
    given = [Lease("b", "1.2.3"), Lease("a", "4.5.6"), Lease("c", None), Lease("d", "x"), Lease("\0", "1.2.3")]
    assert json.loads(lease_batch(given, [10, 20, 30, 40, 50])) == [
        {"i": "a", "m": 4, "n": 5, "b": 6, "d": 20},
        {"i": "b", "m": 1, "n": 2, "b": 3, "d": 10},
    ]
    assert json.loads(id_batch(["b", "\ud800", 'a"'])) == [{"i": 'a"'}, {"i": "b"}]


def test_moves_keep_their_order() -> None:
    moved = [job(1), job(2), job(3)]
    for one in moved:
        one.prepared = packed(one)
    leases = [Lease("b", "1.2.3"), Lease("a", None), Lease("c", "wrong")]
    records = json.loads(move_batch([JobMove(*pair) for pair in zip(leases, moved, strict=True)]))
    assert [(record["o"], record.get("m"), record.get("n"), record["p"]["payload"]) for record in records] == [
        ("b", 1, 2, 1),
        ("a", None, None, 2),
    ]


def test_names() -> None:
    assert table_of("Mail") == "_k_tbl_Mail"
    assert quoted('a"b') == '"a""b"'
    assert index_of("Mail") == 'idx_"_k_tbl_Mail"_mature'
    assert index_of('a"b') == 'idx_"_k_tbl_a""b"_mature'
    assert index_of("ü" * 28) == 'idx_"_k_tbl_' + "ü" * 25  # 63 bytes would end in the middle of the next
    assert len(other_index_of("x" * 56).encode()) <= 63
    assert other_index_of("a") != other_index_of("b")


def test_a_channel_has_its_name_unless_that_is_too_long() -> None:
    fits = "keuss:signal:N:" + "q" * 48
    assert channel_name(fits) == fits
    long = [channel_name(fits + end) for end in ("1", "2")]
    assert long[0] != long[1]
    assert all(name.startswith("keuss:signal:") and len(name) <= 63 for name in long)


@pytest.mark.parametrize("namespace", [None, "N", "{queue}'\\"])
def test_statements_name_the_table_and_nothing_is_left_open(namespace: str | None) -> None:
    statements = Statements.of('a"{table} {where} %s $1', namespace)
    texts = [getattr(statements, name) for name in Statements.__slots__]
    texts += [statements.sizes(5), *(statements.peek(state) for state in (None, *LIVE))]
    assert all('"_k_tbl_a""{table} {where} %s $1"' in text for text in texts)
    assert SETTINGS["jit"] == "off"
    assert ("counter_deltas" in statements.push) == (namespace is not None)


def test_a_scan_begins_where_the_last_one_came_to_but_not_for_long() -> None:
    start = ScanStart()
    again = 10.1 + ScanStart.TRUST_S
    assert start.begin(10.0) == BEGINNING_US
    start.took([5] * (ScanStart.JOBS_MIN - 1))
    assert start.begin(10.1) == BEGINNING_US
    start.took([7, 8])
    assert start.begin(10.2) == 7
    start.took([6, 9])  # others had taken the jobs between: it never goes back by itself
    assert start.begin(10.3) == 7
    assert start.begin(again) == BEGINNING_US
    start.took([20])
    assert start.begin(again + 0.1) == 20
    start.reset()
    assert start.begin(again + 0.2) == BEGINNING_US


@pytest.mark.parametrize(
    ("name", "is_broken", "is_once", "error", "message"),
    [
        ("DiskFull", False, True, StoreError, "free space"),
        ("InsufficientPrivilege", False, False, StoreError, "CREATE on the schema"),
        ("UndefinedColumn", False, False, StoreError, r"Keuss 2\.0\.4"),
        ("ReadOnlySqlTransaction", False, True, StoreError, "read-write"),
        ("UntranslatableCharacter", False, True, BadPayload, "Send it as bytes"),
        ("DataError", False, True, BadPayload, "Send it as bytes"),
        ("AdminShutdown", False, False, ConnectionLost, "went away"),
        ("AdminShutdown", False, True, OutcomeUnknown, "may have been done"),
        ("OperationalError", True, True, OutcomeUnknown, "may have been done"),
        ("OperationalError", True, False, ConnectionLost, "Try again"),
        ("InternalError_", False, False, StoreError, "the words"),
    ],
)
def test_what_an_error_means(name: str, is_broken: bool, is_once: bool, error: type[Exception], message: str) -> None:
    problem = getattr(need_module("psycopg.errors"), name)("the\nwords")
    with pytest.raises(error, match=message):
        raise problems.failed(problem, "url", is_broken, is_once)


@pytest.mark.parametrize(
    ("said", "error", "words"),
    [
        ('FATAL: password authentication failed for user "x"', StoreError, "user and password"),
        ('FATAL: database "x" does not exist', StoreError, "Check the user and the database"),
        ("FATAL: no pg_hba.conf entry for host", StoreError, "must allow this user"),
        ("connection refused", ConnectionLost, "Is the server running"),
        ("FATAL: the database system is starting up", ConnectionLost, "Is the server running"),
        ("FATAL: sorry, too many clients already", ConnectionLost, "max_connections"),
    ],
)
def test_what_a_server_says_at_the_door(said: str, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        raise problems.failed_connect(need_module("psycopg").OperationalError(said), "url")
    with pytest.raises(BadUrl):
        raise problems.failed_connect(need_module("psycopg").ProgrammingError(said), "url")
