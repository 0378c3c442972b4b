"""Jobs as JSON: the column `_pl` as Keuss writes it, and the batches that statements take.

    _pl of a value      {"payload": VALUE, "hdrs": {}}
    _pl of bytes        {"payload": BASE64, "hdrs": {}, "type": "buffer"}

The column is jsonb. It keeps all digits of numbers, but neither the order of keys, nor duplicate keys, nor whether a
whole number was written with an exponent. So large floats are written out with a fraction (1e23 as
100000000000000000000000.0), which makes them floats again for every reader. jsonb refuses zero bytes and halves of
surrogate pairs in text: a payload with these is stored as the bytes of its body, which are read as the same payload;
headers with them are refused.

A statement takes a whole batch as one value, a JSON array of these records; fields that are left out have their
default.

    i   id                        m   maturity that a token names, in microseconds since 1970
    p   _pl                       n   tries that a token names
    u   maturity, in microseconds b   maturity before the reserve, in microseconds
    d   delay or lease, in ms     o   id of the job that a move takes away
    s   whether work has begun
    t   tries                     k   unique key
                                  f   unique_for, in ms
"""

import re
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from collections.abc import Iterable, Sequence
from contextlib import suppress
from decimal import Decimal
from typing import Any

from penstock.codec import HEADERS_BYTES_MAX, from_json, to_json
from penstock.errors import BadPayload
from penstock.job import JobMove, Lease, NewJob
from penstock.queues.lease_token import LeaseToken

# jsonb has room for 256 MiB, and a server for 1 GB in one statement; a job of this size is slow everywhere.
ELEMENT_BYTES_MAX = 100 * 1024 * 1024
_US = 1000

_PLAIN = re.compile(r"[0-9A-Za-z-]+")
# Escapes that jsonb refuses; whole surrogate pairs are never escaped here. After an even number of backslashes it is
# text, not an escape.
_REFUSED = re.compile(r"(?<!\\)(?:\\\\)*\\u(?:0000|[dD][89a-fA-F])")
# A text, which is left alone, or a number with a positive exponent.
_LARGE_FLOAT = re.compile(r'"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?[eE]\+\d+')


def packed(job: NewJob) -> str:
    """Return the record of a job. Raises BadPayload if PostgreSQL can't store it."""
    fields = [f'"i":{_text(job.id)}', f'"p":{_element(job)}']
    if job.mature_ms is not None:
        fields.append(f'"u":{job.mature_ms * _US}')
    elif job.delay_ms:
        fields.append(f'"d":{job.delay_ms}')
    if job.tries:
        fields.append(f'"t":{job.tries}')
    if job.unique is not None:
        fields += [f'"k":{to_json(job.unique)}', f'"f":{job.unique_for_ms}']
    return f"{{{','.join(fields)}}}"


def _element(job: NewJob) -> str:
    payload = job.payload
    kind = ""
    text = None
    if not isinstance(payload, bytes | bytearray | memoryview):
        # The body of a text may be the bare text.
        text = _as_jsonb(to_json(payload) if isinstance(payload, str) else job.body.decode())
    if text is None:
        text = f'"{b64encode(job.body).decode()}"'
        kind = ',"type":"buffer"'
    headers = _as_jsonb(to_json(dict(job.headers))) if job.headers else "{}"
    if headers is None:
        raise BadPayload("headers on PostgreSQL must be text without zero bytes and half surrogate pairs, got one")
    if len(headers) > HEADERS_BYTES_MAX:
        raise BadPayload(f"headers must be at most {HEADERS_BYTES_MAX} bytes as JSON, got {len(headers)}")
    if len(text) > ELEMENT_BYTES_MAX:
        raise BadPayload(
            f"a payload on PostgreSQL must be at most {ELEMENT_BYTES_MAX} bytes as JSON, got {len(text)}: "
            "keep it elsewhere, and send its address"
        )
    return f'{{"payload":{text},"hdrs":{headers}{kind}}}'


def _as_jsonb(text: str) -> str | None:
    """Return JSON as jsonb returns it; None if it can't store it: zero bytes and halves of surrogate pairs."""
    if "\\u" in text and _REFUSED.search(text):
        return None
    if "e+" in text:
        return _LARGE_FLOAT.sub(_written_out, text)
    return text


def _written_out(found: re.Match[str]) -> str:
    number = found[0]
    return number if number.startswith('"') else f"{Decimal(number):f}.0"


def _text(value: str) -> str:
    return f'"{value}"' if _PLAIN.fullmatch(value) else to_json(value)


def batch(records: Iterable[str]) -> str:
    """Return records as one value of a statement."""
    return f"[{','.join(records)}]"


def lease_batch(given: Sequence[Lease], delays_ms: Sequence[int] = (), begun: Sequence[bool] = ()) -> str:
    """Return leases as one value, sorted by id: statements that lock the same jobs lock them in the same order, and
    never deadlock. Those that can't be ours are left out."""
    records = []
    for place, lease in enumerate(given):
        token = LeaseToken.read(lease.token)
        if token is None or not is_id(lease.id):
            continue
        record = f'{{"i":{_text(lease.id)},"m":{token.mature},"n":{token.tries},"b":{token.before}'
        if delays_ms:
            record += f',"d":{delays_ms[place]}'
        if begun:
            record += f',"s":{"true" if begun[place] else "false"}'
        records.append((lease.id, record + "}"))
    return batch(record for _, record in sorted(records))


def move_batch(moves: Iterable[JobMove]) -> str:
    """Return moves as one value, in their order, which the jobs keep. Those whose lease can't be ours are left out."""
    records = []
    for lease, job in moves:
        token = LeaseToken.read(lease.token)
        if is_id(lease.id) and (token is not None or lease.token is None):
            named = "" if token is None else f'"m":{token.mature},"n":{token.tries},'
            records.append(f'{{"o":{_text(lease.id)},{named}{job.prepared[1:]}')
    return batch(records)


def popped(job_id: str, element: str, tries: int, mature_us: int) -> str:
    """Return the record that puts a popped job back."""
    return f'{{"i":{_text(job_id)},"p":{element},"t":{tries},"u":{mature_us}}}'


def is_id(text: str) -> bool:
    """Whether a row can have this id. With any other, PostgreSQL would refuse the whole batch."""
    return "\0" not in text and (text.isascii() or not _REFUSED.search(to_json(text)))


def id_batch(given: Iterable[str]) -> str:
    """Return ids as one value, sorted as leases are."""
    return batch(f'{{"i":{_text(one)}}}' for one in sorted(given) if is_id(one))


def unpacked(text: str | None) -> tuple[Any, dict[str, Any]]:
    """Return payload and headers of a `_pl`. What Keuss or others left out is None, or empty."""
    if text is None:
        return None, {}
    try:
        value = from_json(text)
    except (ValueError, RecursionError):
        value = text.encode()  # too deep, or a number of too many digits: it must not stop the queue
    if not isinstance(value, dict):
        return value, {}
    payload = value.get("payload")
    headers = value.get("hdrs")
    if value.get("type") == "buffer" and isinstance(payload, str):
        # What is not base64 was written by others, as text.
        with suppress(NotBase64):
            payload = b64decode(payload)
    return payload, headers if isinstance(headers, dict) else {}
