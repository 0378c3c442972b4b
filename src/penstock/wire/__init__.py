"""The wire: bytes to values and back, and nothing else.

Clients and the broker speak RESP, nodes hand each other serialized jobs. This layer knows how both look as
bytes.

Three rules hold here:

- **No I/O.** Nothing in this folder opens, reads, waits or asks for the time. Bytes come in as arguments,
  in pieces cut anywhere, and go out as return values. So the same code serves a socket, a file, a test and
  the simulator.
- **No meaning.** A request is a list of byte strings, a record is a tuple of fields. That a word is a
  command, or that a state may follow another, is known above.
- **Nothing is believed before it has arrived.** A peer may announce a million arguments of 512 MB; that
  costs it and us a few bytes. Every size has a limit, and every way to be wrong ends in one exception a
  module.

Read in this order: `words` (quoting), `requests` (what clients send), `replies` (what they get back),
`reply_reader` (the same, read), `record` (a job as nodes and the journal write it).
"""

from penstock.wire.record import (
    JobRecord,
    RecordError,
    decode_record,
    decode_records,
    encode_record,
)
from penstock.wire.replies import (
    EMPTY_ARRAY,
    NULL3,
    NULL_ARRAY,
    NULL_BULK,
    OK,
    Value,
    array,
    bulk,
    encode_request,
    encode_value,
    error,
    integer,
    map3,
    simple,
)
from penstock.wire.requests import (
    ARGUMENTS_MAX,
    BULK_BYTES_MAX,
    INLINE_BYTES_MAX,
    ProtocolError,
    PureParser,
    RequestReader,
)
from penstock.wire.words import quote_word, split_words

__all__ = [
    "ARGUMENTS_MAX",
    "BULK_BYTES_MAX",
    "EMPTY_ARRAY",
    "INLINE_BYTES_MAX",
    "NULL3",
    "NULL_ARRAY",
    "NULL_BULK",
    "OK",
    "JobRecord",
    "ProtocolError",
    "PureParser",
    "RecordError",
    "RequestReader",
    "Value",
    "array",
    "bulk",
    "decode_record",
    "decode_records",
    "encode_record",
    "encode_request",
    "encode_value",
    "error",
    "integer",
    "map3",
    "quote_word",
    "simple",
    "split_words",
]
