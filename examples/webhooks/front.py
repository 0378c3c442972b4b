"""What the dispatcher answers over HTTP: webhooks come in, people look at what became of them.

| request                          | answer                                                                  |
|----------------------------------|-------------------------------------------------------------------------|
| POST, PUT, PATCH or DELETE `/wh` | 201 and the job's id, once the store has it. Headers: `x-dest-url`, and |
|                                  | `x-delay` in seconds. Receivers get the same method                     |
| GET `/`                          | a page with the state of the queue and the dead letters                 |
| GET `/status`                    | the figures as JSON                                                     |
| POST `/replay`                   | dead letters go back to the queue: that of the form field `id`, or all  |
"""

from __future__ import annotations

import html
import json
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from delivery import payload_of

from penstock.blocking import Job, Store
from penstock.errors import CallerError, PenstockError

QUEUE = "webhooks"
DEAD_LETTERS = "webhooks-dead"
BODY_BYTES_MAX = 1 << 20  # a webhook is a message, not a file
DEAD_SHOWN_MAX = 50
PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta http-equiv="refresh" content="5"><title>Webhooks</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222 }}
table {{ border-collapse: collapse; width: 100%; margin: 1rem 0 }}
th, td {{ text-align: left; padding: .3rem .6rem; border-bottom: 1px solid #ddd; overflow-wrap: anywhere }}
.number {{ font-size: 1.6rem }} button {{ font: inherit; white-space: nowrap }}
</style></head><body>
<h1>Webhooks</h1>
<table><tr>{heads}</tr><tr>{numbers}</tr></table>
<h2>Dead letters</h2>{dead}
</body></html>
"""


@dataclass(frozen=True)
class Refusal(Exception):
    """A request that can't be done: the status, and a sentence that says what must be."""

    status: int
    sentence: str


class Front(ThreadingHTTPServer):
    """The server. `hosts` are those that webhooks may go to; empty for all."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], store: Store, hosts: frozenset[str]) -> None:
        super().__init__(address, Request)
        self.store = store
        self.queue = store.queue(QUEUE)
        self.dead_letters = store.queue(DEAD_LETTERS)
        self.hosts = hosts

    def status(self) -> dict[str, Any]:
        """Return the figures of the page."""
        sizes, counters = self.queue.sizes(), self.queue.stats()
        return {
            "waiting": sizes.ready,
            "later": sizes.scheduled,
            "being sent": sizes.reserved,
            "delivered": counters.get("ack", 0),
            "dead": self.dead_letters.total(),
        }


class Request(BaseHTTPRequestHandler):
    """One request."""

    server: Front
    protocol_version = "HTTP/1.1"
    timeout = 30  # seconds that a client may be silent

    def do_GET(self) -> None:
        self._answer({"/": self._page, "/status": self._status})

    def do_POST(self) -> None:
        self._answer({"/wh": self._accept, "/replay": self._replay})

    def do_PUT(self) -> None:
        self._answer({"/wh": self._accept})

    def do_PATCH(self) -> None:
        self._answer({"/wh": self._accept})

    def do_DELETE(self) -> None:
        self._answer({"/wh": self._accept})

    def _answer(self, calls: dict[str, Any]) -> None:
        path = urlsplit(self.path).path
        try:
            if path not in calls:
                raise Refusal(404, f"there is no {self.command} {path}; webhooks go to /wh")
            calls[path]()
        except Refusal as refusal:
            self._send(refusal.status, {"error": refusal.sentence})
        except CallerError as problem:  # what the producer asked for can't be stored
            self._send(400, {"error": str(problem)})
        except PenstockError as problem:  # the store is away: nothing was promised, the producer tries again
            self._send(503, {"error": str(problem)})

    def _accept(self) -> None:
        body = self._body()
        target = self.headers.get("x-dest-url", "")
        delay = self.headers.get("x-delay", "0")
        if not target:
            raise Refusal(400, "the header x-dest-url must be the URL that the webhook goes to, and is missing")
        try:
            payload = payload_of(target, self.command, self.headers.get("Content-Type", "application/json"), body)
            delay_s = float(delay)
        except ValueError as problem:
            raise Refusal(400, f"can't take this webhook: {problem}") from None
        if self.server.hosts and urlsplit(target).hostname not in self.server.hosts:
            raise Refusal(403, f"the host must be one of {', '.join(sorted(self.server.hosts))}, got {target!r}")
        self._send(201, {"id": self.server.queue.push(payload, delay=delay_s)})

    def _body(self) -> bytes:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal():
            raise Refusal(411, "the request must say its length in Content-Length")
        if int(length) > BODY_BYTES_MAX:
            self.close_connection = True  # the body stays unread
            raise Refusal(413, f"a body must be at most {BODY_BYTES_MAX} bytes, got {length}")
        return self.rfile.read(int(length))

    def _replay(self) -> None:
        wanted = parse_qs(self._body().decode(errors="replace")).get("id", [""])[0]
        chosen = (lambda job: job.id == wanted) if wanted else None
        self.server.dead_letters.redrive(chosen, to=QUEUE)
        self._send(303, {}, {"Location": "/"})

    def _status(self) -> None:
        self._send(200, self.server.status())

    def _page(self) -> None:
        figures = self.server.status()
        page = PAGE.format(
            heads="".join(f"<th>{name}</th>" for name in figures),
            numbers="".join(f'<td class="number">{value}</td>' for value in figures.values()),
            dead=_dead_table(self.server.dead_letters.peek(DEAD_SHOWN_MAX, state=None)),
        )
        self._send(200, page)

    def _send(self, status: int, content: dict[str, Any] | str, headers: dict[str, str] | None = None) -> None:
        is_page = isinstance(content, str)
        data = (content if is_page else json.dumps(content) + "\n").encode()
        kind = "text/html; charset=utf-8" if is_page else "application/json"
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(data)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def log_request(self, code: object = "-", size: object = "-") -> None:
        """Deliveries are worth a line; requests are not."""


def _dead_table(jobs: list[Job]) -> str:
    if not jobs:
        return "<p>None.</p>"
    rows = [
        "<tr>"
        + "".join(f"<td>{html.escape(str(cell))}</td>" for cell in _cells(job))
        + '<td><form method="post" action="/replay">'
        + f'<button name="id" value="{html.escape(job.id)}">Replay</button></form></td></tr>'
        for job in jobs
    ]
    replay_all = '<form method="post" action="/replay"><button>Replay all</button></form>'
    return f"<table><tr><th>target</th><th>error</th><th>since</th><th></th></tr>{''.join(rows)}</table>{replay_all}"


def _cells(job: Job) -> tuple[object, ...]:
    return job.payload["url"], job.headers.get("x-dl-error", ""), job.headers.get("x-dl-t", "")
