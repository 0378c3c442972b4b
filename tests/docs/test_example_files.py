"""The programs in `examples/` run, and do what they say. Those for Spark run in `tests/spark`."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

import penstock.blocking
from penstock.queues.dead_letter import ERROR
from tests.docs.examples import ROOT
from tests.processes import NodeProcess

pytestmark = pytest.mark.system

EXAMPLES = ROOT / "examples"
HERE = {"broker_lease.py", "fsq_letters.py", "outbox.py", "webhooks.py"}
RUN_S = 60


def run(name: str, *words: str, within: Path) -> list[str]:
    """The lines that an example prints."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *words],
        cwd=within,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_every_example_is_run() -> None:
    elsewhere = (ROOT / "tests" / "spark" / "test_session.py").read_text("utf-8")
    for path in sorted(EXAMPLES.glob("*.py")):
        assert path.name in HERE or path.stem in elsewhere, f"no test runs {path.name}"


def test_letters_are_sent_from_a_directory(tmp_path: Path) -> None:
    printed = run("fsq_letters.py", str(tmp_path / "spool"), within=tmp_path)
    later = "later: the server of bob@example.down is down"
    assert printed == [
        "sent to ann@example.com - Dear ann, ...",
        later,
        "failed: 'nobody' is not an address",
        later,
        later,
        "given up: bob@example.down",
    ]
    places = {
        place: len(list((tmp_path / "spool" / "letters" / place).iterdir())) for place in ("queue", "done", "fail")
    }
    assert places == {"queue": 0, "done": 1, "fail": 2}


def test_an_order_and_its_job_are_one_transaction(tmp_path: Path) -> None:
    assert run("outbox.py", "shop.db", within=tmp_path) == [
        "refused: 0 of pear can't be shipped",
        "shipping order 1",
        "1 done",
    ]


def test_jobs_of_a_broker_are_kept_and_given_back(tmp_path: Path) -> None:
    node = NodeProcess(tmp_path).start()
    try:
        printed = run("broker_lease.py", f"127.0.0.1:{node.port}", within=tmp_path)
    finally:
        node.kill()
    assert printed == [
        "resizing cat.png after 0 failures",
        "OK",
        "resizing broken.png after 0 failures",
        "no picture",
        "OK",
        "resizing broken.png after 1 failures",
        "OK",
    ]


class _Receiver(BaseHTTPRequestHandler):
    """Answers with the status that the path names."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(int(self.path.strip("/")))
        self.end_headers()

    def log_request(self, code: object = "-", size: object = "-") -> None:
        """Nothing on the terminal."""


@contextmanager
def receiver() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), _Receiver)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_webhooks_are_delivered_given_up_or_tried_again(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    with receiver() as target:
        ids = {
            status: run("webhooks.py", "add", url, f"{target}/{status}", "{}", within=tmp_path)[0]
            for status in (200, 404, 503)
        }
        printed = run("webhooks.py", "work", url, "--until-empty", within=tmp_path)
    assert printed == [f"delivered to {target}/200", "1 done, 1 retried, 1 failed"]
    with penstock.blocking.connect(url) as store:
        (again,) = store.queue("webhooks").peek(state=None)
        (dead,) = store.dead_letters().peek()
        assert (again.id, dead.id) == (ids[503], ids[404])
        assert dead.headers[ERROR] == f"{target}/404 answered 404"
