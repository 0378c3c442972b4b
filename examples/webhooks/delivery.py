"""One webhook: the job that keeps it, the request that delivers it, and what the receiver's answer means.

| the receiver                         | and the job                                                       |
|--------------------------------------|-------------------------------------------------------------------|
| answers 2xx                          | is done                                                           |
| answers 408, 425, 429 or 5xx         | comes back: as `Retry-After` says, or after a pause that grows    |
| can't be reached, or takes over 10 s | comes back after a pause that grows                               |
| answers anything else                | goes to the dead letters: the same request would be refused again |

A request that was answered may be sent again if the dispatcher crashes before the store knows: receivers tell by the
header `webhook-id`, which stays the same. With a secret, requests are signed as in the Standard Webhooks specification.
"""

from __future__ import annotations

import base64
import hmac
import time
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import urlsplit

from penstock import Fail, Retry
from penstock.blocking import Job

ANSWER_S = 10.0
RETRY_AFTER_S_MAX = 24 * 3600.0  # a receiver may ask for a pause, but not for a year
COME_BACK = frozenset({408, 425, 429})  # the only answers of 4xx that ask for another try


def payload_of(target: str, method: str, content_type: str, body: bytes) -> dict[str, Any]:
    """Return the payload of a job: readable where the body is text, so that `penstock peek` shows it."""
    address = urlsplit(target)
    if address.scheme not in {"http", "https"} or not address.hostname:
        raise ValueError(f"the target must be an http or https URL, got {target!r}")
    try:
        text, encoding = body.decode(), "utf-8"
    except UnicodeDecodeError:
        text, encoding = base64.b64encode(body).decode(), "base64"
    return {"url": target, "method": method, "content_type": content_type, "body": text, "encoding": encoding}


def signature(secret: bytes, job_id: str, timestamp: int, body: bytes) -> str:
    """Return the header `webhook-signature` for a body that is sent at a time."""
    signed = b"%s.%d.%s" % (job_id.encode(), timestamp, body)
    return "v1," + base64.b64encode(hmac.digest(secret, signed, "sha256")).decode()


class NoRedirect(urllib.request.HTTPRedirectHandler):
    """Answers of 3xx are errors: to follow them would send the body to a host that nobody named."""

    def redirect_request(self, *_: object) -> None:
        return None


class Delivery:
    """Sends the requests of jobs. It is the handler of the worker, which calls it in threads."""

    def __init__(self, secret: bytes | None) -> None:
        self._secret = secret
        self._opener = urllib.request.build_opener(NoRedirect)

    def send(self, job: Job) -> None:
        """Deliver a webhook, or raise what becomes of its job."""
        hook = job.payload
        body = base64.b64decode(hook["body"]) if hook["encoding"] == "base64" else hook["body"].encode()
        now = int(time.time())
        headers = {"Content-Type": hook["content_type"], "webhook-id": job.id, "webhook-timestamp": str(now)}
        if self._secret is not None:
            headers["webhook-signature"] = signature(self._secret, job.id, now, body)
        request = urllib.request.Request(hook["url"], body, headers, method=hook["method"])
        try:
            with self._opener.open(request, timeout=ANSWER_S):
                print(f"delivered {job.id} to {hook['url']}", flush=True)
        except urllib.error.HTTPError as answer:
            said = f"{hook['url']} answered {answer.code}"
            if answer.code not in COME_BACK and answer.code < 500:
                raise Fail(said) from None
            raise Retry(said, delay=_asked_pause(answer.headers.get("Retry-After"))) from None


def _asked_pause(retry_after: str | None) -> float | None:
    """Return the seconds of `Retry-After`; None, which leaves it to the back-off, if there are none."""
    if retry_after is None or not retry_after.isdecimal():
        return None
    return min(float(retry_after), RETRY_AFTER_S_MAX)
