"""Push and the JSON-RPC server: what clients of the original send, and what attackers do."""

from __future__ import annotations

import http.client
import json
import os
import select
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock import fsq
from penstock.fsq.remote import client, server
from penstock.fsq.remote.server import BATCH_MAX, AccessRules, HttpRequest, RequestRefused, answer, check, read_head
from tests.fsq import programs
from tests.processes import free_port, wait_until

NAME = "_20261115184212_0_18383_web1_0_arg"
TOKEN = "a-token-of-more-than-16-letters"
JSON = "application/json-rpc"


def ask(method: str, params: Any = (), **more: Any) -> Any:
    body = {"jsonrpc": "2.0", "id": "x1", "method": method, "params": params, **more}
    return json.loads(answer(json.dumps(body).encode()))


# Calls, without a network.


def test_an_item_is_enqueued_under_its_name_and_twice_is_once(root: Path, queue: str) -> None:
    for _ in range(2):
        assert ask("enqueue", [NAME, queue, "grüße"]) == {"result": NAME, "error": None, "id": "x1"}
    assert (root / "mail/queue" / NAME).read_bytes() == "grüße".encode()
    assert ask("enqueue", {"id": NAME, "queue": queue, "data": "x"})["result"] == NAME


def test_requests_without_a_version_are_served(queue: str) -> None:
    assert json.loads(answer(b'{"method": "is_down", "params": ["mail"], "id": 5}')) == {
        "result": False,
        "error": None,
        "id": 5,
    }
    fsq.down(queue)
    assert ask("is_down", [queue])["result"] is True
    assert ask("api_version")["result"] == "1.0"


def test_a_trigger_is_pulled_with_named_parameters(root: Path, queue: str) -> None:
    fsq.trigger(queue)
    named = {"queue": queue, "ignore_listener": False, "trigger": "trigger-s"}
    assert "no listener" in ask("trigger_pull", named)["error"]["message"]
    fd = os.open(root / "mail/trigger-s", os.O_RDONLY | os.O_NONBLOCK)
    assert ask("trigger_pull", named)["result"] is None
    assert os.read(fd, 10) == b"\0"
    os.close(fd)


def test_the_server_says_what_it_can(queue: str) -> None:
    methods = ask("system.listMethods")["result"]
    assert {"enqueue", "trigger_pull", "is_down", "api_version", "system.methodHelp"} <= set(methods)
    assert "queue" in ask("system.methodHelp", ["enqueue"])["result"]
    assert ask("system.methodSignature", ["enqueue"])["result"] == ["id", "queue", "data"]


@pytest.mark.parametrize(
    ("item_id", "target"),
    [
        ("../../victim", "mail"),
        ("/etc/passwd", "mail"),
        ("..", "mail"),
        ("", "mail"),
        (NAME + "\0", "mail"),
        (NAME, "../root"),
        (NAME, ".."),
        (NAME, ""),
        (NAME, "mail/queue"),
        (NAME, "mail\0"),
        ("stray", "mail"),
        (NAME + "%zz", "mail"),
        (NAME + "\udcff", "mail"),
        ("x" * 300, "mail"),
        (NAME, "absent"),
        (5, "mail"),
        (None, "mail"),
        (["a"], "mail"),
        (NAME, {"a": 1}),
    ],
)
def test_ids_and_queues_that_lead_elsewhere_are_refused(root: Path, queue: str, item_id: Any, target: Any) -> None:
    (root / "victim").write_bytes(b"precious")
    before = sorted(root.rglob("*"))
    reply = ask("enqueue", [item_id, target, "owned"])
    assert reply["result"] is None
    assert reply["error"]["code"] == -32603
    assert "Traceback" not in reply["error"]["message"]
    assert sorted(root.rglob("*")) == before
    assert (root / "victim").read_bytes() == b"precious"


@pytest.mark.parametrize("trigger", ["../../victim", "down", "queue", "..", "", 5, ["x"]])
def test_a_pull_writes_into_triggers_only(root: Path, queue: str, trigger: Any) -> None:
    (root / "victim").write_bytes(b"precious")
    fsq.down(queue)
    reply = ask("trigger_pull", {"queue": queue, "ignore_listener": True, "trigger": trigger})
    assert reply["error"]["code"] == -32603
    assert (root / "victim").read_bytes() == b"precious"
    assert (root / "mail/down").read_bytes() == b""


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", -32700),
        (b"\xff\xfe", -32700),
        (b"{", -32700),
        (b"[" * 100_000, -32700),
        (b"[]", -32600),
        (b"5", -32600),
        (b'{"method": 5, "id": 1}', -32600),
        (b'{"method": "is_down", "params": 5, "id": 1}', -32600),
        (b'{"method": "is_down", "params": [], "id": [1]}', -32600),
        (b'{"method": "__class__", "params": [], "id": 1}', -32601),
        (b'{"method": "os.system", "params": ["true"], "id": 1}', -32601),
        (b'{"method": "is_down", "params": [], "id": 1}', -32602),
        (b'{"method": "is_down", "params": {"queue": "q", "self": 1}, "id": 1}', -32602),
        (json.dumps([{"method": "api_version", "id": 1}] * (BATCH_MAX + 1)).encode(), -32600),
        (b'{"method": "is_down", "params": ["\\ud800"], "id": 1}', -32603),
        (b'{"method": "api_version", "id": ' + b"1" * 5000 + b"}", -32700),
    ],
)
def test_nonsense_gets_an_error(queue: str, body: bytes, code: int) -> None:
    assert json.loads(answer(body))["error"]["code"] == code


def test_a_batch_is_answered_in_order_and_a_notification_not_at_all(queue: str) -> None:
    batch = [{"method": "is_down", "params": [queue], "id": number} for number in range(3)]
    assert [reply["id"] for reply in json.loads(answer(json.dumps(batch).encode()))] == [0, 1, 2]
    assert answer(b'{"jsonrpc": "2.0", "method": "api_version"}') == b""


def test_whatever_fails_within_is_an_error_without_details(queue: str) -> None:
    def broken() -> None:
        raise KeyError("a secret")

    reply = json.loads(answer(b'{"method": "broken", "params": [], "id": 1}', {"broken": broken}))
    assert reply["error"] == {"code": -32603, "message": "KeyError"}


# HTTP, without a network.


def request(**headers: str) -> HttpRequest:
    path = headers.pop("path", "/")
    usual = {"host": "127.0.0.1:7800", "content-type": JSON, "content-length": "5"}
    return HttpRequest(
        headers.pop("method", "POST"), path, {**usual, **{k.replace("_", "-"): v for k, v in headers.items()}}
    )


def status_of(asked: HttpRequest, rules: AccessRules) -> int:
    try:
        check(asked, rules)
    except RequestRefused as refused:
        return refused.status
    return 200


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        (request(), 200),
        (request(host="localhost"), 200),
        (request(host="[::1]:80"), 200),
        (request(content_type="application/json; charset=utf-8"), 200),
        (request(method="GET"), 405),
        (request(method="OPTIONS"), 405),
        (request(host="evil.example:7800"), 403),
        (request(host=""), 403),
        (request(content_type="text/plain"), 415),
        (request(content_type="application/x-www-form-urlencoded"), 415),
        (request(content_length=""), 411),
        (request(content_length="-1"), 411),
        (request(content_length="5_0"), 411),
        (request(content_length="\u0665"), 411),
        (request(transfer_encoding="chunked"), 411),
        (request(content_length="999999999"), 413),
        (request(content_length="9" * 30), 413),
    ],
)
def test_on_loopback_only_this_machine_is_served(asked: HttpRequest, status: int) -> None:
    assert status_of(asked, AccessRules(host="127.0.0.1")) == status


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        (request(authorization=f"Bearer {TOKEN}"), 200),
        (request(authorization=f"bearer {TOKEN}", host="any.example"), 200),
        (request(path=f"/{TOKEN}"), 200),
        (request(path=f"/{TOKEN}/"), 200),
        (request(), 401),
        (request(authorization=TOKEN), 401),
        (request(authorization=f"Basic {TOKEN}"), 401),
        (request(authorization=f"Bearer {TOKEN[:-1]}"), 401),
        (request(path=f"/{TOKEN}x"), 401),
        (request(path=f"/x?{TOKEN}"), 401),
        (request(path="/é"), 401),
    ],
)
def test_with_a_token_only_its_owners_are_served(asked: HttpRequest, status: int) -> None:
    assert status_of(asked, AccessRules(host="0.0.0.0", token=TOKEN)) == status


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"POST / HTTP/1.1 x\r\n\r\n",
        b"POST /\r\n\r\n",
        b"POST / HTTP/2\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length : 1\r\n\r\n",
        b"POST / HTTP/1.1\r\n Content-Length: 1\r\n\r\n",
        b"POST / HTTP/1.1\r\nnonsense\r\n\r\n",
    ],
)
def test_a_head_that_is_none_is_refused(head: bytes) -> None:
    with pytest.raises(RequestRefused):
        read_head(head)


@pytest.mark.parametrize(
    ("host", "is_own"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("::", False), ("10.0.0.1", False)],
)
def test_loopback_is_known(host: str, is_own: bool) -> None:
    assert server.is_loopback(host) is is_own


# A real server.


class Daemon:
    def __init__(self, process: subprocess.Popen[bytes], port: int) -> None:
        self.process = process
        self.port = port
        self.url = f"http://127.0.0.1:{port}"

    def answers(self) -> bool:
        assert self.process.poll() is None
        try:
            return bool(client.call(f"{self.url}/{TOKEN}", "api_version", []) == "1.0")
        except (OSError, ValueError) as error:
            return "401" in str(error)

    def status(self, raw: bytes) -> int:
        with socket.create_connection(("127.0.0.1", self.port), timeout=30) as link:
            link.sendall(raw)
            response = http.client.HTTPResponse(link)
            response.begin()
            response.read()
            return response.status


@pytest.fixture
def daemon(queue: str) -> Iterator[Callable[..., Daemon]]:
    """Start `fsq jsonrpcd`, and end it."""
    running: list[Daemon] = []

    def start(*words: str, host: str = "", **settings: str) -> Daemon:
        port = free_port()
        where = [host, str(port)] if host else [str(port)]
        running.append(Daemon(programs.start("jsonrpcd", "-w", "2", *words, *where, settings=settings), port))
        wait_until(running[-1].answers)
        return running[-1]

    yield start
    for one in running:
        if one.process.poll() is None:
            one.process.send_signal(signal.SIGTERM)
            one.process.wait(programs.SECONDS_MAX)


@pytest.mark.system
def test_items_are_pushed_to_another_machine(root: Path, daemon: Callable[..., Daemon]) -> None:
    fsq.install("out", hosts=["far"])
    fsq.install_host("out", "near")
    sent = fsq.senqueue("out", "grüße", "arg")
    fsq.vreenqueue(sent, ["out"], src_queue="out", all_hosts=True)
    fsq.trigger("mail")
    far = daemon()
    done = programs.run("push", "-ti", "-v", far.url, "out", "mail", "far", sent)
    assert (done.returncode, done.stderr) == (0, f"fsq push: sent {sent}\n".encode())
    assert (root / "mail/queue" / sent).read_bytes() == "grüße".encode()
    assert os.listdir(root / "out/hosts/far/queue") == [sent], "completing it is up to the caller"
    scanned = programs.run(
        "scan",
        "-a",
        "out",
        "sh",
        "-c",
        f'"{_python()}" -m penstock.cli.fsq push -L {far.url} out mail "$FSQ_ITEM_HOST" "$FSQ_ITEM_ID"',
    )
    assert (scanned.returncode, scanned.stderr) == (0, b"")
    assert os.listdir(root / "out/hosts/far/done") == os.listdir(root / "out/hosts/near/done") == [sent]


def _python() -> str:
    import sys

    return sys.executable


@pytest.mark.system
def test_a_push_that_fails_says_why(root: Path, queue: str, daemon: Callable[..., Daemon]) -> None:
    far = daemon()
    binary, text = fsq.senqueue(queue, b"\xff\xfe"), fsq.senqueue(queue, "fine")
    with fsq.FSQWorkItem(queue, binary) as item, pytest.raises(fsq.FSQPushError, match="not text"):
        fsq.push(item, far.url, "mail")
    with fsq.FSQWorkItem(queue, text) as item:
        with pytest.raises(fsq.FSQPushError, match="cannot reenqueue into absent"):
            fsq.push(item, far.url, "absent")
        with pytest.raises(fsq.FSQPushError, match="Connection refused"):
            fsq.push(item, f"http://127.0.0.1:{free_port()}/secret-path", "mail")
        with pytest.raises(ValueError, match="jsonrpc"):
            fsq.push(item, far.url, "mail", protocol="smoke")
        with pytest.raises(fsq.FSQPushError) as caught:
            fsq.push(item, "ftp://x/secret-path", "mail")
    assert "secret" not in str(caught.value)
    with pytest.raises(fsq.FSQRemoteTriggerError):
        fsq.remote_trigger_pull(far.url, "mail")


@pytest.mark.system
def test_an_address_that_others_reach_needs_a_token(root: Path, daemon: Callable[..., Daemon], tmp_path: Path) -> None:
    for settings in ({}, {"FSQ_TOKEN": "short"}):
        refused = programs.run("jsonrpcd", "0.0.0.0", str(free_port()), settings=settings)
        assert refused.returncode == 100
        assert b"token" in refused.stderr
    secret = tmp_path / "token"
    secret.write_text(f"{TOKEN}\nnot this\n")
    far = daemon("--token-file", str(secret), host="0.0.0.0")
    with pytest.raises(ValueError, match="401"):
        client.call(far.url, "api_version", [])
    with pytest.raises(ValueError, match="401"):
        client.call(far.url, "api_version", [], token="x" * 20)
    assert client.call(f"{far.url}/{TOKEN}", "api_version", []) == "1.0"
    assert client.call(far.url, "api_version", [], token=TOKEN) == "1.0"
    cmdline = Path(f"/proc/{far.process.pid}/cmdline").read_bytes()
    assert TOKEN.encode() not in cmdline


@pytest.mark.system
def test_rude_clients_are_refused_and_hold_nobody_up(root: Path, daemon: Callable[..., Daemon]) -> None:
    far = daemon("--max-bytes", "1000")
    idle = [socket.create_connection(("127.0.0.1", far.port)) for _ in range(20)]
    for link in idle:
        link.sendall(b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\n")
    head = b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    assert far.status(head + b"Content-Length: 1001\r\n\r\n") == 413
    assert far.status(b"GET / HTTP/1.1\r\n\r\n") == 405
    assert far.status(b"POST / HTTP/1.1\r\nHost: evil.example\r\n\r\n") == 403
    assert far.status(b"X" * 40_000 + b"\r\n\r\n") == 400
    assert far.status(head + b"Content-Length: 4\r\n\r\nnull") == 200
    with socket.create_connection(("127.0.0.1", far.port)) as half:
        half.sendall(head + b"Content-Length: 100\r\n\r\nhalf")
    assert client.call(far.url, "enqueue", [NAME, "mail", "x"]) == NAME
    for link in idle:
        link.close()
    with pytest.raises(ValueError, match="413"):
        client.call(far.url, "enqueue", [NAME, "mail", "x" * 2000])


@pytest.mark.system
def test_only_the_queues_of_a_list_are_filled(root: Path, daemon: Callable[..., Daemon]) -> None:
    fsq.install("open")
    fsq.install("private", is_triggered=True)
    far = daemon("--queue", "open", "-q", "mail")
    for queue in ("open", "mail"):
        assert client.call(far.url, "enqueue", [NAME, queue, "x"]) == NAME
    for method, params in (
        ("enqueue", [NAME, "private", "x"]),
        ("enqueue", {"id": NAME, "queue": "private", "data": "x"}),
        ("trigger_pull", ["private", True]),
        ("is_down", ["private"]),
    ):
        with pytest.raises(ValueError, match="queue must be one that this server takes items for, got 'private'"):
            client.call(far.url, method, params)
    assert os.listdir(root / "private/queue") == []
    assert client.call(far.url, "system.methodSignature", ["enqueue"]) == ["id", "queue", "data"]
    refused = programs.run("jsonrpcd", "--queue", "../mail", str(free_port()))
    assert (refused.returncode, b"--queue: illegal name: '../mail'" in refused.stderr) == (100, True)


@pytest.mark.system
def test_bodies_that_are_not_finished_have_a_limit_together(root: Path, daemon: Callable[..., Daemon]) -> None:
    far = daemon("-w", "1", "--max-bytes", "1000000", "--max-total-bytes", "3000000")
    half = json_request(1_000_000)[:-100_000]
    links = [socket.create_connection(("127.0.0.1", far.port), timeout=30) for _ in range(6)]
    for link in links:
        link.sendall(half)
    # Three bodies of 900,000 bytes fit, and no fourth.
    refused = wait_until(lambda: len(found := select.select(links, [], [], 0)[0]) == 3 and found)
    for link in refused:
        assert link.recv(100).startswith(b"HTTP/1.1 503 Service Unavailable")
    for link in links:
        link.close()
    wait_until(lambda: far.status(json_request(1_000_000)) == 200)
    wrong = programs.run("jsonrpcd", "-w", "4", "--max-bytes", "1000", "--max-total-bytes", "3999", str(free_port()))
    assert wrong.returncode == 100
    assert b"must be at least --workers times --max-bytes (4000), got 3999" in wrong.stderr


def json_request(length: int) -> bytes:
    head = "POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {length}\r\n\r\n".encode() + b" " * (length - 2) + b"{}"


@pytest.mark.system
def test_a_name_for_loopback_that_leads_elsewhere_needs_a_token(queue: str, tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("0.0.0.0 localhost\n")
    command = f'mount --bind {hosts} /etc/hosts && exec "$@"'
    argv = ["unshare", "-m", "sh", "-c", command, "sh", _python(), "-m", "penstock.cli.fsq", "jsonrpcd", "localhost"]
    if subprocess.run([*argv[:4], f"mount --bind {hosts} /etc/hosts"], capture_output=True, check=False).returncode:
        pytest.skip("this user can't mount another /etc/hosts")
    process = subprocess.Popen([*argv, str(free_port())], env=programs.environment(), stderr=subprocess.PIPE)
    try:
        _, said = process.communicate(timeout=10)
    except subprocess.TimeoutExpired:
        process.terminate()
        _, said = process.communicate()
    assert (process.returncode, b"token is needed" in said) == (100, True), said


def workers_of(process: subprocess.Popen[bytes]) -> set[int]:
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    return set(map(int, children.read_text().split()))


@pytest.mark.system
def test_workers_are_replaced_and_end_with_their_parent(root: Path, daemon: Callable[..., Daemon]) -> None:
    far = daemon()
    before = wait_until(lambda: (found := workers_of(far.process)) and len(found) == 2 and found)
    os.kill(min(before), signal.SIGKILL)
    wait_until(lambda: len(workers_of(far.process) - {min(before)}) == 2)
    middle = workers_of(far.process)
    far.process.send_signal(signal.SIGHUP)
    wait_until(lambda: len(workers_of(far.process) - middle) == 2)
    assert client.call(far.url, "api_version", []) == "1.0"
    last = workers_of(far.process)
    far.process.send_signal(signal.SIGTERM)
    assert far.process.wait(programs.SECONDS_MAX) == 0
    for pid in last:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_reply_of_the_original_is_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    assert client._result(b'{"result": "x", "error": null, "id": 1}') == "x"
    assert client._result(b'{"jsonrpc": "2.0", "result": null, "id": 1}') is None
    for bad in (b"{}", b"[]", b'{"result": 1, "error": {"message": "no"}}', b'{"error": "no"}', b"[" * 100_000):
        with pytest.raises(ValueError, match=r"no|JSON"):
            client._result(bad)
