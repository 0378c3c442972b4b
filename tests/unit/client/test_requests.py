"""Requests: words, times, and what is done when a reply is lost or unwanted."""

import math

import pytest

from penstock.broker.commands.table import COMMANDS
from penstock.client import requests
from penstock.client.requests import REPEATS, ConnectionUse, Fetch, RawFetch, Repeat, Request, raw
from penstock.client.values import Job
from penstock.errors import CallerError

ID = b"D-aaaaaaaa-000000000000000000000001-05a1"
OTHER_ID = b"D-aaaaaaaa-000000000000000000000002-05a0"


def words(request: Request, now: float = 0.0) -> list[object]:
    (command,) = request.commands_at(now)
    return list(command)


# Repeats


def test_the_table_has_only_commands_of_a_node() -> None:
    assert {name.lower() for name in REPEATS} <= set(COMMANDS)


def test_what_adds_is_repeated_only_if_the_caller_allows_it() -> None:
    assert {name for name, repeat in REPEATS.items() if repeat is Repeat.ALLOWED} == {"ADDJOB", "ADDJOBS"}


def test_what_only_reads_is_always_repeated() -> None:
    reads = {
        name.upper() for name, row in COMMANDS.items() if row.group in ("queues", "jobs") and "readonly" in row.flags
    }
    assert {REPEATS[name] for name in reads} == {Repeat.ALWAYS}


def test_every_command_about_jobs_has_a_row() -> None:
    about_jobs = {name.upper() for name, row in COMMANDS.items() if row.group in ("queues", "jobs")}
    assert about_jobs - set(REPEATS) == {"LOADJOB"}


@pytest.mark.parametrize("name", ["SHUTDOWN", "CONFIG", "DEBUG", "CLUSTER", "NEWCOMER"])
def test_what_is_not_in_the_table_is_never_repeated(name: str) -> None:
    assert Request((name,)).repeat is Repeat.NEVER


# Fetching


def test_a_fetch_waits_until_its_time_however_late_it_is_asked() -> None:
    fetch = Fetch(["q"], 10.0, 1, False, None)
    assert words(fetch, 2.0)[1:3] == ["TIMEOUT", 8000]
    assert words(fetch, 9.9999)[1:3] == ["TIMEOUT", 1]
    assert words(fetch, 10.0)[1] == "NOHANG"
    assert (fetch.wait_at(2.0), fetch.wait_at(11.0)) == (8.0, 0.0)


def test_a_fetch_that_does_not_wait_shares_a_connection() -> None:
    assert Fetch(["q"], None, 1, False, None).use is ConnectionUse.QUICK
    assert Fetch(["q"], 10.0, 1, False, None).use is ConnectionUse.WAIT


def test_options_of_a_fetch() -> None:
    fetch = Fetch(["a", b"b"], None, 7, True, 1500)
    assert words(fetch) == ["GETJOB", "NOHANG", "COUNT", 7, "WITHCOUNTERS", "LEASE", 1500, "FROM", "a", b"b"]


@pytest.mark.parametrize(
    ("given", "use", "wait"),
    [
        (("GETJOB", "FROM", "q"), ConnectionUse.WAIT, math.inf),
        (("getjob", "timeout", 1500, "from", "q"), ConnectionUse.WAIT, 1.5),
        ((b"GETJOB", b"TIMEOUT", b"0", b"FROM", b"q"), ConnectionUse.WAIT, math.inf),
        (("GETJOB", "NOHANG", "FROM", "q"), ConnectionUse.QUICK, 0.0),
        (("GETJOB", "FROM", "NOHANG", "TIMEOUT", "5"), ConnectionUse.WAIT, math.inf),
    ],
)
def test_a_fetch_in_the_callers_words_is_understood(given: tuple[str, ...], use: ConnectionUse, wait: float) -> None:
    request = raw(given)
    assert isinstance(request, RawFetch)
    assert (request.use, request.wait_at(0.0)) == (use, wait)


# Giving back


def test_jobs_that_nobody_wants_are_nacked() -> None:
    back = Fetch(["q"], None, 2, True, None).undo([[[b"q", ID, b"x"], [b"q", OTHER_ID, b"y"]]])
    assert back is not None
    assert words(back) == ["NACK", ID, OTHER_ID]


def test_leased_jobs_that_nobody_wants_are_given_back_by_token() -> None:
    for fetch in (Fetch(["q"], None, 1, True, 1000), raw(("GETJOB", "LEASE", 1000, "FROM", "q"))):
        back = fetch.undo([[[b"q", ID, b"x", b"17", b"nacks", 0, b"additional-deliveries", 0]]])
        assert back is not None
        assert [list(command) for command in back.commands_at(0.0)] == [
            ["RELEASE", ID, b"17"],
            ["NACKLEASE", 0, ID, b"17"],
        ]


@pytest.mark.parametrize("replies", [[], [None], [[]]])
def test_where_there_was_no_job_there_is_nothing_to_give_back(replies: list[object]) -> None:
    assert Fetch(["q"], None, 1, False, None).undo(replies) is None


def test_other_replies_are_nothing_to_give_back() -> None:
    assert Request(("QPEEK", "q", 1)).undo([[[b"q", ID, b"x"]]]) is None


def test_an_id_says_that_its_job_is_delivered_at_most_once() -> None:
    assert not requests.is_at_most_once(ID)
    assert requests.is_at_most_once(OTHER_ID.decode())


# Adding


def test_options_of_an_add() -> None:
    terms = requests.add_terms(1.5, 3, 1, 2, 3, 4, True)
    rest = ["REPLICATE", 3, "DELAY", 1, "RETRY", 2, "TTL", 3, "MAXLEN", 4, "ASYNC"]
    assert words(requests.add_one("q", "käse", terms)) == ["ADDJOB", "q", "käse".encode(), 1500, *rest]
    assert words(requests.add_all("q", [b"a", b"b"], terms)) == ["ADDJOBS", "q", 1500, *rest, "BODIES", b"a", b"b"]
    each = requests.add_each("q", [b"a", b"b"], terms)
    assert each.count == 2
    assert [list(command) for command in each.commands_at(0.0)] == [
        ["ADDJOB", "q", body, 1500, *rest] for body in (b"a", b"b")
    ]


def test_an_add_that_may_wait_for_copies_has_a_connection_of_its_own() -> None:
    assert requests.add_terms(5, None, None, None, None, None, False).use is ConnectionUse.ADD
    assert requests.add_terms(5, 3, None, None, None, None, False).use is ConnectionUse.ADD
    assert requests.add_terms(5, 1, None, None, None, None, False).use is ConnectionUse.QUICK
    assert requests.add_terms(5, 3, None, None, None, None, True).use is ConnectionUse.QUICK


def test_an_add_without_a_timeout_waits_forever() -> None:
    terms = requests.add_terms(None, None, None, None, None, None, False)
    assert (terms.timeout_ms, terms.wait) == (0, math.inf)


@pytest.mark.parametrize("timeout", [0, -1])
def test_an_add_that_waits_no_time_is_refused_since_nodes_take_that_for_forever(timeout: float) -> None:
    with pytest.raises(CallerError, match="timeout must be a number of seconds above 0"):
        requests.add_terms(timeout, None, None, None, None, None, False)


def test_many_bodies_are_cut_by_number_and_by_size() -> None:
    sizes = [len(batch) for batch in requests.batches(b"x" for _ in range(2 * requests.ADD_JOBS_MAX + 1))]
    assert sizes == [requests.ADD_JOBS_MAX, requests.ADD_JOBS_MAX, 1]
    half = b"x" * (requests.ADD_BYTES_MAX // 2)
    assert [len(batch) for batch in requests.batches([half] * 5)] == [2, 2, 1]
    assert [len(batch) for batch in requests.batches([half * 4, b"x"])] == [1, 1]
    assert list(requests.batches([])) == []


def test_a_text_is_not_taken_for_many_bodies() -> None:
    with pytest.raises(CallerError, match="must be a list"):
        list(requests.batches("abc"))


def test_bodies_are_bytes_or_text() -> None:
    assert [requests.body_bytes(body) for body in (b"a", "ä", bytearray(b"b"), memoryview(b"c"))] == [
        b"a",
        "ä".encode(),
        b"b",
        b"c",
    ]
    with pytest.raises(CallerError, match="got dict"):
        requests.body_bytes({})  # type: ignore[arg-type]  # the mistake that is tested


# Numbers and names


@pytest.mark.parametrize(("seconds", "expected"), [(0, 0), (1, 1000), (0.0001, 1), (1.5, 1500), (2.0001, 2001)])
def test_times_are_rounded_up_to_milliseconds(seconds: float, expected: int) -> None:
    assert requests.milliseconds(seconds, "lease") == expected


@pytest.mark.parametrize("seconds", [-1, "5", None, float("nan"), float("inf")])
def test_what_is_no_time_is_named(seconds: float) -> None:
    with pytest.raises(CallerError, match="lease"):
        requests.milliseconds(seconds, "lease")


def test_delays_are_whole_seconds() -> None:
    assert requests.whole(5.0, "delay") == 5
    with pytest.raises(CallerError, match="delay"):
        requests.whole(0.5, "delay")


def test_one_queue_or_many() -> None:
    assert requests.queue_names("q") == ["q"]
    assert requests.queue_names(b"q") == [b"q"]
    assert requests.queue_names(iter(["a", b"b"])) == ["a", b"b"]
    with pytest.raises(CallerError):
        requests.queue_names([])


def test_a_job_or_its_id() -> None:
    assert requests.id_of("D-x") == requests.id_of(Job("q", "D-x", b"")) == "D-x"


@pytest.mark.parametrize(
    "given", [("MONITOR",), ("quit",), (b"AUTH", "x"), ("CLIENT", "reply", "off"), ("HELLO", 3), ()]
)
def test_what_would_spoil_a_shared_connection_is_refused(given: tuple[str, ...]) -> None:
    with pytest.raises(CallerError):
        raw(given)


def test_hello_without_a_version_and_other_client_commands_are_fine() -> None:
    assert raw(("HELLO",)).name == "HELLO"
    assert raw(("CLIENT", "LIST")).name == "CLIENT"
