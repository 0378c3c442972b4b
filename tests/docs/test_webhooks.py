"""The webhook dispatcher of `examples/webhooks`, as a process, with a receiver that fails now and then."""

from __future__ import annotations

import base64
import hmac
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.docs.examples import ROOT
from tests.server_fixtures import store_url

pytestmark = pytest.mark.system

SECRET = b"a secret of the test"
PATIENCE_S = 60.0


class Receiver(ThreadingHTTPServer):
    """Answers `/200,503`: with the last status first, and after each answer with the one before it."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), ReceivedRequest)
        self.requests: list[tuple[str, dict[str, str], bytes]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def received(self, path: str) -> list[tuple[dict[str, str], bytes]]:
        """Return the requests for a path so far."""
        return [(headers, body) for asked, headers, body in self.requests if asked == path]


class ReceivedRequest(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        statuses = self.path.strip("/").split(",")
        earlier = len(self.server.received(self.path))
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.requests.append((self.path, headers, body))
        self.send_response(int(statuses[max(0, len(statuses) - 1 - earlier)]))
        self.send_header("Retry-After", "0")
        self.send_header("Location", f"{self.server.url}/elsewhere")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_request(self, code: object = "-", size: object = "-") -> None:
        """Nothing on the terminal."""


class Dispatcher:
    """The program as a process."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(ROOT / "examples/webhooks/dispatcher.py"), "--port", "0", *words],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "WEBHOOK_SECRET": SECRET.decode()},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().split()[-1]

    def call(self, path: str, body: bytes | None = None, **headers: str) -> tuple[int, Any]:
        """Return the status and the JSON or text of an answer."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        request = urllib.request.Request(self.url + path, body, named)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
                status, text = answer.status, answer.read().decode()
        except urllib.error.HTTPError as answer:
            status, text = answer.code, answer.read().decode()
        return status, json.loads(text) if text.startswith("{") else text

    def add(self, target: str, body: bytes = b"{}", **headers: str) -> str:
        """Send a webhook; return its id."""
        status, answer = self.call("/wh", body, x_dest_url=target, **headers)
        assert status == 201, answer
        return str(answer["id"])

    def wait_for(self, **figures: int) -> None:
        """Wait until the status has these figures."""
        end = time.monotonic() + PATIENCE_S
        while (status := self.call("/status")[1]) and not figures.items() <= status.items():
            assert time.monotonic() < end, f"{figures} did not come: {status}"
            time.sleep(0.05)

    def end(self, with_signal: signal.Signals = signal.SIGTERM) -> str:
        """Stop it; return the last line that it printed."""
        self.process.send_signal(with_signal)
        return (self.process.communicate(timeout=PATIENCE_S)[0].splitlines() or [""])[-1]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def dispatcher(tmp_path: Path) -> Iterator[Dispatcher]:
    running = Dispatcher(tmp_path)
    yield running
    if running.process.poll() is None:
        running.end(signal.SIGKILL)


@pytest.fixture(params=["its own", "redis+oq", "postgresql", "mongodb"])
def dispatcher_on_a_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Dispatcher]:
    words = [] if request.param == "its own" else [store_url(request, tmp_path)]
    running = Dispatcher(tmp_path, *words)
    yield running
    if running.process.poll() is None:
        running.end(signal.SIGKILL)


def test_a_webhook_is_delivered_signed_and_again_after_a_failure(
    receiver: Receiver, dispatcher_on_a_store: Dispatcher
) -> None:
    dispatcher = dispatcher_on_a_store
    body = b'{"order": 7, "name": "M\xc3\xbcller"}'
    job_id = dispatcher.add(f"{receiver.url}/200,503", body, Content_Type="application/json")
    dispatcher.wait_for(delivered=1, waiting=0, later=0)
    first, second = receiver.received("/200,503")
    for headers, received in (first, second):
        signed = b"%s.%s.%s" % (job_id.encode(), headers["webhook-timestamp"].encode(), body)
        expected = "v1," + base64.b64encode(hmac.digest(SECRET, signed, "sha256")).decode()
        assert (received, headers["webhook-id"], headers["content-type"]) == (body, job_id, "application/json")
        assert headers["webhook-signature"] == expected
    assert dispatcher.end() == "1 done, 1 retried"


def test_what_is_refused_for_good_is_shown_and_replayed(receiver: Receiver, dispatcher: Dispatcher) -> None:
    job_id = dispatcher.add(f"{receiver.url}/200,404", b"\xff\x00")
    dispatcher.add(f"{receiver.url}/302")
    dispatcher.wait_for(dead=2)
    _, page = dispatcher.call("/")
    assert f"{receiver.url}/200,404 answered 404" in page
    assert f"{receiver.url}/302 answered 302" in page, "a redirect must not be followed"
    assert re.search(f'value="{job_id}">Replay', page)
    dispatcher.call("/replay", f"id={job_id}".encode())
    dispatcher.wait_for(dead=1, delivered=1)
    assert [body for _, body in receiver.received("/200,404")] == [b"\xff\x00"] * 2
    assert receiver.received("/elsewhere") == []


def test_a_crash_loses_no_webhook_that_was_accepted(receiver: Receiver, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/hooks.db?lease=1"
    first = Dispatcher(tmp_path, url)
    ids = [first.add(f"{receiver.url}/200", str(number).encode()) for number in range(50)]
    first.end(signal.SIGKILL)
    second = Dispatcher(tmp_path, url)
    second.wait_for(waiting=0, later=0, **{"being sent": 0})
    assert {headers["webhook-id"] for headers, _ in receiver.received("/200")} == set(ids)
    second.end()


@pytest.mark.parametrize(
    ("headers", "status", "sentence"),
    [
        ({}, 400, "x-dest-url must be the URL"),
        ({"x_dest_url": "ftp://example.net/"}, 400, "must be an http or https URL, got 'ftp://example.net/'"),
        ({"x_dest_url": "http://example.net/", "x_delay": "soon"}, 400, "could not convert string to float"),
        ({"x_dest_url": "http://example.net/", "x_delay": "-1"}, 400, "delay must be 0 to"),
    ],
)
def test_a_wrong_request_is_refused_with_a_sentence(
    dispatcher: Dispatcher, headers: dict[str, str], status: int, sentence: str
) -> None:
    answered, answer = dispatcher.call("/wh", b"{}", **headers)
    assert answered == status
    assert sentence in answer["error"]
    assert dispatcher.call("/status")[1]["waiting"] == 0


def test_a_large_body_and_a_foreign_host_are_refused(tmp_path: Path) -> None:
    dispatcher = Dispatcher(tmp_path, "--host", "example.net")
    try:
        assert dispatcher.call("/wh", b"x" * (2 << 20), x_dest_url="http://example.net/")[0] == 413
        assert dispatcher.call("/wh", b"{}", x_dest_url="http://localhost/")[0] == 403
    finally:
        dispatcher.end(signal.SIGKILL)
