"""The commands on the queues of a store, on a store in memory."""

from __future__ import annotations

import io
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from penstock import DeadLetter, blocking
from penstock.cli import queues
from penstock.cli.main import GROUPS, load
from penstock.errors import BadPayload, BadUrl, CallerError, LeaseLost, Unsupported
from tests.processes import wait_until


class Shell:
    """Runs `penstock` words in this process, and keeps what was printed."""

    def __init__(self, url: str, capsys: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
        self.url = url
        self._capsys = capsys
        self._monkeypatch = monkeypatch
        self.code = 0

    def __call__(self, command: str, *words: str, given: bytes | None = None) -> str:
        if given is not None:
            self._monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given)))
        group = GROUPS[command]
        self.code = load(group)([*group.words, self.url, *words])
        return self.printed()

    def printed(self) -> str:
        return self._capsys.readouterr().out.decode()

    def json(self, command: str, *words: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self(command, *words).splitlines()]


@pytest.fixture
def shell(
    request: pytest.FixtureRequest, capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> Shell:
    return Shell(f"memory:{request.node.name}", capsysbinary, monkeypatch)


def test_bodies_are_pushed_and_popped_as_they_are(shell: Shell) -> None:
    assert len(shell("push", "q", "hello", '{"a": 1}').splitlines()) == 2
    assert shell("size", "q") == "2\n"
    assert shell("pop", "q") == "hello\n"
    assert shell("pop", "q") == '{"a": 1}\n'
    assert shell("pop", "q") == ""
    assert shell.code == 1


def test_lines_of_standard_input_are_jobs(shell: Shell) -> None:
    shell("push", "q", "--lines", "-q", given=b"one\ntwo\r\n\xff\n")
    with blocking.connect(shell.url) as store:
        assert [job.body for job in store.queue("q").pop_many(9)] == [b"one", b"two", b"\xff"]


def test_all_of_standard_input_is_one_job(shell: Shell) -> None:
    shell("push", "q", given=b"one\ntwo\n")
    assert shell("pop", "q") == "one\ntwo\n\n"


def test_json_is_checked_before_anything_is_stored(shell: Shell) -> None:
    with pytest.raises(BadPayload, match="body 2 is not valid JSON"):
        shell("push", "q", "--json", "[1]", "[")
    assert shell("size", "q") == "0\n"


def test_a_job_in_json_has_all_that_is_known(shell: Shell) -> None:
    shell("push", "q", "--json", '{"to": "tom"}', "--header", "kind=mail", "--header", "n=3", "--delay", "60")
    [job] = shell.json("peek", "q", "--json")
    assert (job["payload"], job["headers"], job["state"]) == ({"to": "tom"}, {"kind": "mail", "n": 3}, "scheduled")
    shell("push", "q", given=b"\xff\x00")
    assert shell.json("pop", "q", "--json")[0]["base64"] == "/wA="
    shell("push", "r", "hello")
    assert shell.json("pop", "r", "--json")[0]["payload"] == "hello"


def test_a_reserved_job_is_ended_by_its_token(shell: Shell) -> None:
    shell("push", "q", "one")
    [job] = shell.json("reserve", "q", "--json")
    with pytest.raises(LeaseLost, match="can't be acked"):
        shell("ack", "q", job["id"], "no-such-token")
    with pytest.raises(LeaseLost, match="can't be given back"):
        shell("nack", "q", job["id"], "no-such-token")
    shell("nack", "q", job["id"], job["token"])
    [again] = shell.json("reserve", "q", "--json")
    assert again["tries"] == 1
    shell("ack", "q", again["id"], again["token"])
    assert shell.json("size", "q", "--json")[0]["total"] == 0


def test_reserved_jobs_are_shown_with_what_ends_them(shell: Shell) -> None:
    shell("push", "q", "one")
    job_id, token, tries, until, body = shell("reserve", "q", "--lease", "60").rstrip("\n").split("\t")
    assert (tries, body) == ("0", "one")
    assert until.endswith("Z")
    shell("ack", "q", job_id, token)
    assert shell.json("size", "q", "--json")[0]["total"] == 0


def test_ids_and_tokens_are_whole_on_a_narrow_terminal(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    shell("push", "q", "x" * 200)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "40")
    shown = shell("reserve", "q").splitlines()[1].split()
    job_id, token = shown[0], shown[1]
    shell("ack", "q", job_id, token)
    assert shell.json("size", "q", "--json")[0]["total"] == 0


@pytest.mark.parametrize("body", ["[bold]x[/bold]", "[/x]", ":smile:"])
def test_a_terminal_shows_a_body_as_it_is(shell: Shell, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    shell("push", "q", body)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert shell("peek", "q").splitlines()[1].split()[-1] == body


def test_the_url_can_be_left_out_where_the_variable_has_it(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    shell("push", "q", "one")
    monkeypatch.setenv("PENSTOCK_URL", shell.url)
    assert load(GROUPS["pop"])(["pop", "--timeout", "0", "q"]) == 0
    assert shell.printed() == "one\n"
    other = f"{shell.url}-other"
    shell("push", "q", "two")
    assert load(GROUPS["move"])(["move", "q", other, "r"]) == 0
    assert shell.printed() == "1\n"
    monkeypatch.setenv("PENSTOCK_URL", "sqlite:///not-used.db")
    shell.url = other
    assert shell("pop", "r") == "two\n"  # a URL that is given goes before


def test_both_urls_of_a_move_can_be_left_out(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    other = f"{shell.url}-other"
    shell("push", "q", "one")
    monkeypatch.setenv("PENSTOCK_URL", shell.url)
    with pytest.raises(CallerError, match="move needs TO_URL and TO_QUEUE, or TO_QUEUE and the variable"):
        load(GROUPS["move"])(["move", "q", "r"])
    monkeypatch.setenv("PENSTOCK_TO_URL", other)
    assert load(GROUPS["move"])(["move", "q", "r"]) == 0
    assert shell.printed() == "1\n"
    shell.url = other
    assert shell("pop", "r") == "one\n"


def test_a_variable_that_is_not_a_url_is_refused(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_URL", "jobs.db")
    with pytest.raises(CallerError, match="PENSTOCK_URL must be the URL of a store"):
        load(GROUPS["size"])(["size", "q"])


def test_counts_are_printed_for_programs_with_their_queue(shell: Shell) -> None:
    shell("push", "q", "a", "b", "c")
    assert shell.json("move", "q", f"{shell.url}-other", "r", "--json") == [{"queue": "q", "to": "r", "jobs": 3}]
    shell("push", "q", "a")
    assert shell.json("purge", "q", "--yes", "--json") == [{"queue": "q", "jobs": 1}]
    assert shell.json("redrive", "--json") == [{"queue": "__deadletter__", "jobs": 0}]


def test_a_unique_key_returns_the_first_id_again(shell: Shell) -> None:
    assert shell("push", "q", "a", "--unique", "k") == shell("push", "q", "b", "--unique", "k")
    with pytest.raises(CallerError, match="one job"):
        shell("push", "q", "a", "b", "--unique", "k")


def test_what_would_be_ignored_is_refused(shell: Shell) -> None:
    with pytest.raises(CallerError, match="--unique"):
        shell("push", "q", "a", "--unique-for", "60")
    with pytest.raises(CallerError, match="--lines reads the bodies from standard input"):
        shell("push", "q", "--lines", "a", given=b"one\ntwo\n")
    assert shell("size", "q") == "0\n"


def test_a_paused_queue_returns_nothing(shell: Shell) -> None:
    shell("push", "q", "one")
    shell("pause", "q")
    assert shell("pop", "q") == ""
    assert shell.json("queues", "--json")[0]["paused"] is True
    shell("resume", "q")
    assert shell("pop", "q") == "one\n"


def test_dead_letters_go_back_where_they_came_from(shell: Shell) -> None:
    with blocking.connect(shell.url) as store:
        for name, error in (("mail", "no such address"), ("mail", "timeout"), ("sms", "timeout")):
            store.queue(name).push(name)
            store.queue(name).reserve(0).fail(error)  # type: ignore[union-attr] # there is a job
    assert shell("redrive", "--from", "mail", "--error", "timeout") == "1\n"
    assert shell("size", "mail") == "1\n"
    assert shell("redrive", "--to", "other") == "2\n"
    assert shell("size", "other") == "2\n"


def test_purge_asks_first(shell: Shell) -> None:
    shell("push", "q", "a", "b")
    with pytest.raises(CallerError, match="--yes"):
        shell("purge", "q", given=b"")
    assert shell("purge", "q", "--yes") == "2\n"
    assert shell("size", "q") == "0\n"


def test_move_takes_ready_and_scheduled_jobs(shell: Shell) -> None:
    shell("push", "q", "now", "--header", "a=1")
    shell("push", "q", "later", "--delay", "3600")
    other = f"{shell.url}-other"
    assert shell("move", "q", other, "r") == "2\n"
    assert shell.json("size", "q", "--json")[0]["total"] == 0
    with blocking.connect(other) as store:
        ready, later = store.queue("r").jobs()
        assert (ready.body, ready.headers, later.body, later.state) == (b"now", {"a": 1}, b"later", "scheduled")


def test_a_move_that_was_cut_off_is_taken_up_without_doubles(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    shell("push", "q", *[str(number) for number in range(20)])
    other = f"{shell.url}-other"
    with monkeypatch.context() as patch:
        patch.setattr("penstock.queues.blocking.migration._end", _cut_off)
        with pytest.raises(InterruptedError):
            shell("move", "q", other, "r")
    assert shell("move", "q", other, "r") == "20\n"
    with blocking.connect(other) as store:
        assert sorted(int(job.body) for job in store.queue("r").jobs()) == list(range(20))
    assert shell.json("size", "q", "--json")[0]["total"] == 0


def _cut_off(*_: Any) -> None:
    raise InterruptedError


def test_a_queue_is_not_moved_to_itself(shell: Shell) -> None:
    with pytest.raises(CallerError, match="same queue"):
        shell("move", "q", shell.url, "q")


def test_counters_that_no_other_process_sees_are_not_printed(shell: Shell, tmp_path: Path) -> None:
    shell.url = f"sqlite:///{tmp_path}/jobs.db?stats=memory:"
    shell("push", "q", "a")
    with pytest.raises(Unsupported, match="each process has only its own counts"):
        shell("stats", "q")


def test_counters_are_printed(shell: Shell) -> None:
    shell("push", "q", "a")
    shell("pop", "q")
    [counters] = shell.json("stats", "q", "--json")
    assert counters == {
        "queue": "q",
        "push": 1,
        "pop": 0,
        "reserve": 1,
        "ack": 1,
        "nack": 0,
        "dead_letter": 0,
        "paused": False,
        "type": "memory",
    }
    shell("pause", "q")
    assert "paused\ttrue" in shell("stats", "q").splitlines()


COMMANDS = [name for name, group in GROUPS.items() if group.module == queues.__name__]
MORE_WORDS = {"ack": ["i", "t"], "nack": ["i", "t"], "move": ["memory:", "q"]}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_bad_url_is_said_to_be_one(command: str, shell: Shell) -> None:
    shell.url = "nosuch://place"
    words = [] if command == "queues" else ["q", *MORE_WORDS.get(command, [])]
    with pytest.raises(BadUrl, match="no store nosuch"):
        shell(command, *words)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str, shell: Shell) -> None:
    shell.url = "--help"
    assert f"Usage: penstock {command} " in shell(command)


def _reserved(shell: Shell) -> dict[str, Any]:
    shell("push", "q", "work", "-q")
    [job] = shell.json("reserve", "q", "--json")
    return job


def test_a_job_is_acked_through_its_queue(shell: Shell) -> None:
    job = _reserved(shell)
    shell("ack", "q", job["id"], job["token"])
    assert shell.json("stats", "q", "--json")[0]["ack"] == 1
    with pytest.raises(LeaseLost, match="can't be acked"):
        shell("ack", "q", job["id"], job["token"])


def test_a_nack_of_the_last_try_reaches_the_dead_letters(shell: Shell) -> None:
    shell.url += "?dead_letter=1"
    job = _reserved(shell)
    shell("nack", "q", job["id"], job["token"], "--error", "broken pipe")
    [dead] = shell.json("peek", "__deadletter__", "--json")
    assert (dead["headers"]["x-dl-from-queue"], dead["headers"]["x-dl-error"]) == ("q", "broken pipe")
    [counters] = shell.json("stats", "q", "--json")
    assert (counters["nack"], counters["dead_letter"]) == (0, 1)


@pytest.mark.parametrize("words", ["peek q", "ack q id 1", "nack q id 1", "purge q --yes", "move q memory:elsewhere q"])
def test_a_command_for_jobs_at_a_wrong_path_leaves_nothing_there(shell: Shell, tmp_path: Path, words: str) -> None:
    shell.url = f"sqlite:///{tmp_path}/jbos.db"
    with pytest.raises(CallerError, match=r"jbos\.db doesn't exist: check the path"):
        shell(*words.split())
    assert list(tmp_path.iterdir()) == []


def test_a_nack_wakes_waiting_callers(shell: Shell) -> None:
    job = _reserved(shell)
    with blocking.connect(shell.url, poll=300) as store, ThreadPoolExecutor(1) as threads:
        queue = store.queue("q")
        waiting = threads.submit(queue.reserve, 300)  # longer than the test waits: at its end it would look anyway
        wait_until(lambda: queue.waiters == 1)
        try:
            shell("nack", "q", job["id"], job["token"])
            assert waiting.result(10).id == job["id"]
        finally:
            queue.cancel()
    assert shell.json("stats", "q", "--json")[0]["nack"] == 1


def test_peek_shows_why_a_job_was_given_up(shell: Shell) -> None:
    with blocking.connect(shell.url) as store:
        queue = store.queue("mail", dead_letter=DeadLetter(1))
        queue.push(b"hello")
        try:
            raise ValueError("no such\naddress")
        except ValueError as problem:
            queue.reserve(timeout=0).fail(problem)
        [dead] = store.dead_letters().peek()
    [line] = shell("peek", "__deadletter__").splitlines()
    assert line.split("\t")[-5:] == ["mail", dead.headers["x-dl-t"], "1", "ValueError: no such\\naddress", "hello"]
    text = shell("peek", "__deadletter__", "--traceback")
    assert "Traceback (most recent call last):" in text
    assert 'raise ValueError("no such' in text


def test_peek_says_after_how_many_deliveries_a_job_was_given_up(shell: Shell) -> None:
    with blocking.connect(shell.url) as store:
        queue = store.queue("mail", dead_letter=3)
        queue.push(b"hello")
        for _ in range(3):
            queue.reserve(timeout=0).nack(error="no answer")
        [dead] = store.dead_letters().peek()
    assert (dead.tries, dead.headers["x-dl-tries"]) == (0, 2)
    [line] = shell("peek", "__deadletter__").splitlines()
    assert line.split("\t")[-3:] == ["3", "no answer", "hello"]
