"""Requests out of a stream: the pure parser by example, and hiredis' path against the pure parser."""

import tracemalloc
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any, TypeAlias

import hiredis
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from penstock.wire import (
    ARGUMENTS_MAX,
    BULK_BYTES_MAX,
    INLINE_BYTES_MAX,
    PureParser,
    RequestReader,
    encode_request,
    quote_word,
)

Parser: TypeAlias = PureParser | RequestReader
Outcome: TypeAlias = tuple[list[list[bytes]], str | None]

PARSERS: list[Callable[[], Parser]] = [PureParser, RequestReader]
PING = b"*1\r\n$4\r\nPING\r\n"

both = pytest.mark.parametrize("make", PARSERS)


def read(parser: Parser, chunks: list[bytes]) -> Outcome:
    requests = [request for chunk in chunks for request in parser.feed(chunk)]
    return requests, None if parser.error is None else str(parser.error)


def pieces(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[start:end] for start, end in pairwise(edges)]


@both
@pytest.mark.parametrize("size", [1, 2, 3, 1000])
@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        (PING, [[b"PING"]]),
        (PING * 3, [[b"PING"]] * 3),
        (b"*2\r\n$0\r\n\r\n$3\r\n\r\n*\r\n", [[b"", b"\r\n*"]]),
        (b"PING\r\n", [[b"PING"]]),
        (b"PING\nPING\n", [[b"PING"], [b"PING"]]),
        (b"a 'b c' \"\\x41\"\r\n" + PING, [[b"a", b"b c", b"A"], [b"PING"]]),
        (b'PING ""\r\n', [[b"PING"]]),
        (b'""\r\n' + PING, [[b"PING"]]),
        (b"\r\n\n  \r\n" + PING, [[b"PING"]]),
        (b"*0\r\n*-1\r\n*-7\r\n" + PING, [[b"PING"]]),
        (PING + b"*0\r\n" + PING + b"\n" + PING, [[b"PING"]] * 3),
        (b"_\r\n$-1\r\n#f\r\n:1\r\n+x\r\n-e\r\n", [[b"_"], [b"$-1"], [b"#f"], [b":1"], [b"+x"], [b"-e"]]),
        (PING + b"~1\r\n>1\r\n|1\r\n%1\r\n", [[b"PING"], [b"~1"], [b">1"], [b"|1"], [b"%1"]]),
        # The two bytes behind a bulk are skipped, whatever they are.
        (b"*1\r\n$1\r\naXX" + PING, [[b"a"], [b"PING"]]),
    ],
)
def test_a_stream_gives_its_requests(
    make: Callable[[], Parser], size: int, stream: bytes, expected: list[list[bytes]]
) -> None:
    parser = make()
    assert read(parser, pieces(stream, size)) == (expected, None)
    assert parser.pending_bytes == 0


LONG = b"1" * (INLINE_BYTES_MAX + 1)


@both
@pytest.mark.parametrize("before", [b"", PING, PING[:9], b"PING\n"])
@pytest.mark.parametrize("size", [7, 5000, 10**6])
@pytest.mark.parametrize(
    ("stream", "reason"),
    [
        (LONG, "too big inline request"),
        (b"*" + LONG, "too big mbulk count string"),
        (b"*1\r\n$" + LONG, "too big bulk count string"),
        (b"*1\r\n" + LONG, "too big bulk count string"),
        (b"ECHO 'a\r\n", "unbalanced quotes in request"),
        (b'ECHO "a"b\r\n', "unbalanced quotes in request"),
        (b"*a\r\n", "invalid multibulk length"),
        (b"*\r\n", "invalid multibulk length"),
        (b"*01\r\n", "invalid multibulk length"),
        (b"*1\n$4\r\nPING\r\n", "invalid multibulk length"),
        (b"*12\n$4\r\nPING\r\n", "invalid multibulk length"),
        (b"*%d\r\n" % (ARGUMENTS_MAX + 1), "invalid multibulk length"),
        (b"*99999999999999999999\r\n", "invalid multibulk length"),
        (b"*1\r\nPING\r\n", "expected '$', got 'P'"),
        (b"*1\r\n\r\n", r"expected '$', got '\x0d'"),
        (b"*1\r\n:1\r\n", "expected '$', got ':'"),
        (b"*2\r\n$1\r\na\r\n*1\r\n$1\r\nb\r\n", "expected '$', got '*'"),
        (b"*1\r\n~1\r\n$1\r\nb\r\n", "expected '$', got '~'"),
        (b"*1\r\n$-1\r\n", "invalid bulk length"),
        (b"*1\r\n$x\r\n", "invalid bulk length"),
        (b"*1\r\n$ 1\r\n", "invalid bulk length"),
        (b"*1\r\n$01\r\na\r\n", "invalid bulk length"),
        (b"*1\r\n$4\nPING\r\n", "invalid bulk length"),
        (b"*1\r\n$14\nPING\r\n", "invalid bulk length"),
        (b"*1\r\n$%d\r\n" % (BULK_BYTES_MAX + 1), "invalid bulk length"),
    ],
)
def test_a_broken_stream_says_why_behind_its_good_requests(
    make: Callable[[], Parser], before: bytes, size: int, stream: bytes, reason: str
) -> None:
    parser = make()
    if before == PING[:9]:
        # The same, with a request that is pending when the chunks begin.
        parser.feed(before)
        before = PING
        stream = PING[9:] + stream
    else:
        stream = before + stream
    requests, error = read(parser, pieces(stream, size))
    assert requests == ([[b"PING"]] if before else [])
    assert error == f"Protocol error: {reason}"
    assert parser.feed(PING) == []
    assert parser.pending_bytes == 0


@both
def test_a_line_may_be_as_long_as_the_limit(make: Callable[[], Parser]) -> None:
    word = b"a" * (INLINE_BYTES_MAX - 1)
    assert read(make(), pieces(word + b"\r\n", 1000)) == ([[word]], None)


@both
def test_pending_bytes_count_the_unfinished_request_only(make: Callable[[], Parser]) -> None:
    parser = make()
    counts = []
    for chunk in [PING + b"*2\r", b"\n$3\r\n", b"a", b"bc\r\n$1\r\nd\r", b"\n", b"PI", b"NG\n\r\n", b"\r"]:
        parser.feed(chunk)
        counts.append(parser.pending_bytes)
    assert counts == [3, 8, 9, 19, 0, 2, 0, 1]


@both
def test_held_bytes_count_parsed_arguments_by_what_they_take(make: Callable[[], Parser]) -> None:
    parser = make()
    parser.feed(b"*30000\r\n" + b"$2\r\nab\r\n" * 20_000)
    assert 1_000_000 < parser.held_bytes < 1_500_000
    parser.feed(b"$2\r\nab\r\n" * 10_000)
    assert parser.held_bytes == 0


byte_strings = st.one_of(
    st.binary(max_size=12),
    st.sampled_from([b"", b"\r\n", b"*1\r\n", b"*99999\r\n", b"~1\r\n", b">2\r\n$1"]),
    st.sampled_from([b"x" * 120, b"y" * 1000]),
)
requests_of_bytes = st.lists(byte_strings, min_size=1, max_size=5)
inline_requests = st.lists(st.binary(min_size=1, max_size=8), min_size=1, max_size=4)
cuts = st.lists(st.integers(0, 10**6), max_size=12)


@given(st.lists(requests_of_bytes, max_size=12), cuts)
def test_requests_cut_anywhere_come_back(sent: list[list[bytes]], places: list[int]) -> None:
    chunks = cut(b"".join([encode_request(*request) for request in sent]), places)
    assert read(RequestReader(), chunks) == (sent, None)
    assert read(PureParser(), chunks) == (sent, None)


@given(st.lists(st.tuples(st.booleans(), inline_requests, st.sampled_from([b"\n", b"\r\n"]))), cuts)
def test_inline_requests_and_arrays_mix(sent: list[tuple[bool, list[bytes], bytes]], places: list[int]) -> None:
    stream = b"".join(
        [
            b" ".join(map(quote_word, request)) + line_end if inline else encode_request(*request)
            for inline, request, line_end in sent
        ]
    )
    expected = [request for _, request, _ in sent]
    chunks = cut(stream, places)
    assert read(RequestReader(), chunks) == (expected, None)
    assert read(PureParser(), chunks) == (expected, None)


# Parts of which garbage is made: good headers and their neighbours, so that it gets far before it breaks.
fragments = st.one_of(
    st.sampled_from([PING, b"*", b"$", b"\r\n", b"\n", b"\r", b"*1\r\n", b"*2\r\n", b"$1\r\na\r\n"]),
    st.sampled_from([b"*0\r\n", b"*-1\r\n", b"$-1\r\n", b"$4\r\n", b"*00\r\n", b"$00\r\n", b"*10000\r\n"]),
    st.sampled_from([b"_\r\n", b"#f\r\n", b":1\r\n", b",1.5\r\n", b"!1\r\nx\r\n", b"-E\r\n", b".\r\n"]),
    st.sampled_from([b"%1\r\n", b"~1\r\n", b"~0\r\n", b">1\r\n", b"|1\r\n", b"$?\r\n", b"*?\r\n"]),
    st.sampled_from([b"%1\r\n*0\r\n$1\r\na\r\n", b"*1\r\n" * 12, b"PING ", b'"']),
    st.binary(max_size=4),
)


@settings(max_examples=600)
@given(st.lists(fragments, max_size=14).map(b"".join), cuts)
@example(PING + b"#f\r\n" + PING, [])
@example(b"%1\r\n*0\r\n$1\r\na\r\n", [])
def test_garbage_means_the_same_to_both(stream: bytes, places: list[int]) -> None:
    # As elements of an array hiredis takes these for bulks, if they come in one chunk.
    assume(not set(b"+=(") & set(stream))
    whole = read(PureParser(), [stream])
    chunks = cut(stream, places)
    assert read(PureParser(), chunks) == whole
    assert read(RequestReader(), chunks) == whole
    assert read(RequestReader(), [stream]) == whole


@given(st.binary(max_size=60), cuts)
def test_no_stream_raises(stream: bytes, places: list[int]) -> None:
    for make in PARSERS:
        read(make(), cut(b"*3\r\n" + stream, places))


@pytest.mark.parametrize("element", [b"+x\r\n", b"=5\r\ntxt:x\r\n", b"(12\r\n"])
def test_what_follows_an_odd_element_is_found_at_its_place(element: bytes) -> None:
    reader = RequestReader()
    requests = reader.feed(b"*2\r\n$1\r\na\r\n" + element + PING + PING[:7])
    assert requests[1:] == [[b"PING"]]
    assert reader.feed(PING[7:]) == [[b"PING"]]


@pytest.mark.parametrize("size", [100, 16384, 16385, 40000, 262144])
def test_long_pipelines_of_all_sizes_are_cut_at_the_right_places(size: int) -> None:
    sizes = [0, 1, 9, 10, 99, 100, 999, 1000, 9999, 10000, 99999, 100000]
    sent = [[b"ADDJOB", b"%d" % number, b"x" * length] for number, length in enumerate(sizes * 3)]
    sent += [[b"ACKJOB"] * count for count in (9, 10, 99, 100, 999, 1000)] * 3
    stream = b"".join([encode_request(*request) for request in sent])
    assert read(RequestReader(), pieces(stream, size)) == (sent, None)


def test_a_request_of_many_arguments_is_read_whole() -> None:
    sent = [b"ACKJOB", *[b"%d" % number for number in range(20000)]]
    for chunks in ([encode_request(*sent)], pieces(encode_request(*sent), 5000)):
        assert read(RequestReader(), chunks) == ([sent], None)


@both
@pytest.mark.parametrize("announced", [b"*1048576\r\n$536870912\r\n", b"*1048576\r\n", b"*1\r\n$536870912\r\nabc"])
def test_what_is_only_announced_costs_nothing(make: Callable[[], Parser], announced: bytes) -> None:
    parsers = [make() for _ in range(200)]
    tracemalloc.start()
    try:
        for parser in parsers:
            assert parser.feed(announced) == []
            assert parser.error is None
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 200 * 2000
    assert peak < 200 * 2000 + 100_000


HiredisReader = hiredis.Reader


class WatchedReader:
    """A hiredis reader that notes what it is fed."""

    def __init__(self, fed: list[bytes], **options: Any) -> None:
        self._reader = HiredisReader(**options)
        self._fed = fed
        self.gets = self._reader.gets
        self.has_data = self._reader.has_data

    def feed(self, data: bytes, start: int = 0, size: int = -1) -> None:
        self._fed.append(data[start:] if size < 0 else data[start : start + size])
        self._reader.feed(self._fed[-1])


@pytest.fixture
def fed(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    noted: list[bytes] = []
    monkeypatch.setattr(hiredis, "Reader", partial(WatchedReader, noted))
    return noted


@pytest.mark.parametrize(
    "before", [b"", PING, PING[:9], b"*2\r\n$1\r\na\r\n", b"*1\r\n$1\r\naXX", b"x" * 20000 + b"\n"]
)
@pytest.mark.parametrize("header", [b"*2000000000\r\n", b"*10000\r\n", b"~100000000\r\n", b">10000000\r\n", b"|1\r\n"])
def test_hiredis_never_sees_a_large_count(fed: list[bytes], before: bytes, header: bytes) -> None:
    reader = RequestReader()
    if before == PING[:9]:
        reader.feed(before)
        fed.clear()
        before = PING[9:]
    reader.feed(before + header)
    assert fed == []


def test_hiredis_sees_whole_requests_and_small_counts(fed: list[bytes]) -> None:
    reader = RequestReader()
    reader.feed(PING)
    reader.feed(PING * 3)
    reader.feed(encode_request("ADDJOB", "q", "a > b | c ~ d * 12345", 0))
    assert reader.feed(b"*9999\r\n") == []
    assert len(fed) == 4


def test_hiredis_gets_a_long_chunk_to_its_end_in_slices(fed: list[bytes]) -> None:
    stream = encode_request("ADDJOB", "q", "x" * 100, 0) * 1000
    assert len(RequestReader().feed(stream)) == 1000
    assert b"".join(fed) == stream
    assert max(map(len, fed)) <= 16 * 1024


class CountedBytes(bytes):
    """Bytes that count how many of them were copied or searched."""

    touched = 0

    def __getitem__(self, key: Any) -> Any:
        part = super().__getitem__(key)
        CountedBytes.touched += len(part) if isinstance(part, bytes) else 1
        return part

    def find(self, part: Any, start: Any = 0, end: Any = None) -> int:
        end = len(self) if end is None else min(end, len(self))
        found = super().find(part, start, end)
        CountedBytes.touched += (end if found < 0 else found) - start
        return found


@both
def test_a_large_bulk_in_small_pieces_costs_each_byte_once(make: Callable[[], Parser]) -> None:
    chunk = CountedBytes(b"x" * 4096)
    count = 64 * 1024 * 1024 // len(chunk)
    parser = make()
    pure = parser if isinstance(parser, PureParser) else parser._pure
    parser.feed(b"*2\r\n$1\r\na\r\n$%d\r\n" % (count * len(chunk)))
    CountedBytes.touched = 0
    settled: list[bytes | bytearray] = []
    for number in range(count):
        assert parser.feed(chunk) == []
        if number % 500 == 0:
            # What has been set aside stays as it is: the same objects, never joined before the end.
            assert all(one is other for one, other in zip(settled, pure._pieces, strict=False))
            assert len(pure._pieces) >= len(settled)
            settled = list(pure._pieces)
            assert len(pure._small) < 16 * 1024 + len(chunk)
    assert CountedBytes.touched == count * len(chunk)
    assert parser.pending_bytes > count * len(chunk)
    [[_, body]] = parser.feed(b"\r\n")
    assert len(body) == count * len(chunk)


@both
def test_a_broken_stream_holds_no_memory(make: Callable[[], Parser]) -> None:
    parser = make()
    tracemalloc.start()
    try:
        parser.feed(b"*2\r\n$1000000\r\n" + b"x" * 1000000 + b"\r\n!\r\n")
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert parser.error is not None
    assert kept < 100_000


@both
def test_a_bulk_in_tiny_pieces_takes_no_more_memory_than_its_bytes(make: Callable[[], Parser]) -> None:
    parser = make()
    parser.feed(b"*1\r\n$200000\r\n")
    tracemalloc.start()
    try:
        for _ in range(50_000):
            parser.feed(b"ab")
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 1.5 * 100_000


def test_the_limits_are_those_of_the_original() -> None:
    assert (ARGUMENTS_MAX, BULK_BYTES_MAX, INLINE_BYTES_MAX) == (1048576, 536870912, 65536)
