"""`penstock worker`: its words and options, and what it says when they are wrong."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from typer.main import get_command

from penstock import blocking
from penstock.cli import main, worker
from penstock.errors import CallerError
from penstock.events import Kind, Segment, list_segments
from penstock.queues.backoff import Exponential, Fixed


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a module, and a log that is not this process's."""
    (tmp_path / "shop_c.py").write_text("def send(job): pass\nasync def post(job): pass\nnumber = 1\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(worker, "set_up_log", lambda *options: None)
    return tmp_path


def exit_code(*words: str) -> int | str | None:
    with pytest.raises(SystemExit) as end:
        main.main(["worker", *words])
    return end.value.code


def test_the_help_explains_every_option() -> None:
    options = {name for option in get_command(worker.app).params for name in option.opts if name.startswith("-")}
    assert len(options) > 12
    assert [name for name in sorted(options) if name not in worker.USAGE] == []


@pytest.mark.parametrize("words", [[], ["-h"], ["memory:", "mail", "shop_c:send", "--help"]])
def test_help_can_be_had_everywhere(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(*words) == 0
    assert capsys.readouterr().out == worker.USAGE


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["memory:", "mail"], "needs a URL, a queue and a function"),
        (["memory:", "mail", "send"], "module:function"),
        (["memory:", "mail", "shop_none:send"], "no module 'shop_none'"),
        (["memory:", "mail", "shop_c:sned"], "it has post, send"),
        (["memory:", "mail", "shop_c:number"], "must be a function, got int"),
        (["mail", "memory:", "shop_c:send"], "must begin with a scheme"),
        (["nowhere://x", "mail", "shop_c:send"], "known are"),
        (["memory:", "mail", "shop_c:send", "--lease", "-1"], "lease"),
        (["memory:", "mail", "shop_c:send", "--time-limit", "0"], "time_limit"),
        (["memory:", "mail", "shop_c:send", "--concurrency", "0"], "--concurrency"),
        (["memory:", "mail", "shop_c:send", "--concurrency", "99999999"], "concurrency"),
        (["memory:", "mail", "shop_c:send", "--processes", "99999999"], "processes must be 1 to 512, got 99999999"),
        (
            ["memory:", "mail", "shop_c:send", "--backoff", "soon"],
            "--backoff must be seconds, such as 5, or a range that doubles, such as 1..600, got soon",
        ),
        (["memory:", "mail", "shop_c:send", "--log", "xml"], "--log must be text or json, got xml"),
        (["memory:", "mail", "shop_c:send", "--namespace", "a:b"], "name"),
        (["memory:", "mail", "shop_c:send", "--nope"], "--nope"),
        (
            ["memory:", "mail", "shop_c:send", "--stop-within", "5"],
            "the option --stop-within is now --shutdown-timeout",
        ),
        (["--name=shop", "memory:", "mail", "shop_c:send"], "the option --name is now --namespace"),
    ],
)
def test_a_users_mistake_is_exit_code_2_and_says_what_to_do(
    words: list[str], hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(*words) == 2
    output = capsys.readouterr()
    assert hint in output.err
    assert "Traceback" not in output.err
    assert output.out == ""


def test_a_store_without_its_extra_is_exit_code_1_and_says_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name == "redis" or name.startswith("redis.")]:
        monkeypatch.delitem(sys.modules, name)
    for name in [name for name in sys.modules if name.startswith("penstock.queues.stores.redis.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "redis", None)
    assert exit_code("redis+oq://127.0.0.1:1/0", "mail", "shop_c:send") == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "pip install 'penstock[redis]'" in line


def test_a_dead_server_is_exit_code_1_and_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("redis")
    assert exit_code("redis+oq://127.0.0.1:1/0", "mail", "shop_c:send") == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "127.0.0.1:1" in line


def test_the_url_can_be_left_out_where_the_variable_has_it(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"sqlite:///{here}/jobs.db"
    with blocking.connect(url) as store:
        store.queue("mail").push("hello")
        monkeypatch.setenv("PENSTOCK_URL", url)
        assert exit_code("mail", "shop_c:send", "--until-empty") == 0
        assert store.queue("mail").total() == 0


@pytest.mark.parametrize("function", ["shop_c:send", "shop_c:post"])
def test_empty_queues_end_it(function: str) -> None:
    assert (
        exit_code("memory:", "mail", "sms", function, "--until-empty", "--max-tries", "3", "--namespace", "other") == 0
    )


APP = """
import penstock

app = penstock.App("sqlite:///shop.db")

@app.task(queue="mail")
async def send() -> None: ...
"""


def test_events_of_an_app_are_recorded(here: Path) -> None:
    (here / "shop_events.py").write_text(APP)
    with blocking.connect(f"sqlite:///{here}/shop.db") as store:
        job = store.queue("mail").push({"task": "shop_events.send"})
    assert exit_code("shop_events:app", "--until-empty", "--events", "events") == 0
    (file,) = list_segments(here / "events")
    columns = Segment(file.path).read()
    assert [(job, kind) for kind in (Kind.RESERVED, Kind.BEGUN, Kind.ACKED)] == list(
        zip(columns.job, columns.kind, strict=True)
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("5", Fixed(5)),
        ("0", Fixed(0)),
        ("1..600", Exponential(1, 2, 600)),
        ("0.5..10*3", Exponential(0.5, 3, 10)),
    ],
)
def test_back_offs_can_be_written(text: str, expected: object) -> None:
    assert worker.backoff_option(text) == expected


@pytest.mark.parametrize(
    "text", ["", "x", "1..", "1..x", "1..5*", "-1", "1..5*0.5", "nan", "inf", "1..nan", "1..inf", "1..9*nan", "1e300"]
)
def test_what_is_no_back_off_is_refused(text: str) -> None:
    with pytest.raises(CallerError, match=f"--backoff ({re.escape(text)}: |must be .*, got {re.escape(text)}$)"):
        worker.backoff_option(text)


HANGING = """
import asyncio, threading
end = threading.Event()

def hang(job):
    end.wait(30)

async def hang_on(job):
    while not end.is_set():
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            pass
"""


@pytest.mark.parametrize("function", ["hang", "hang_on"])
def test_a_function_that_hangs_is_an_error_that_names_the_way_out(
    function: str, here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.worker.runners.CANCEL_S", 0.05)
    monkeypatch.delitem(sys.modules, "shop_d", raising=False)
    (here / "shop_d.py").write_text(HANGING)
    url = f"memory:shop-{function}"
    with blocking.connect(url) as store:
        store.queue("mail").push("x")
    try:
        assert exit_code(url, "mail", f"shop_d:{function}", "-c", "1", "--time-limit", "0.05", "--backoff", "0") == 1
    finally:
        sys.modules["shop_d"].end.set()
    assert "--processes" in capsys.readouterr().err
