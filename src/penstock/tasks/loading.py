"""Apps by name: `shop:app`."""

from __future__ import annotations

from penstock.errors import CallerError
from penstock.queues.registry import is_store_url
from penstock.tasks.app import App
from penstock.worker.handlers import load_object

RULE = "an app must be module:app, such as shop:app"


def load_app(name: str) -> App:
    """Return the app that `module:app` names. Modules of the current directory are found, too."""
    if is_store_url(name):
        raise CallerError(f"{RULE}; a function needs a URL and a queue before it. Got only a URL")
    found = load_object(name, RULE, App)
    if not isinstance(found, App):
        raise CallerError(
            f"{name} must be a penstock.App, got {type(found).__name__}; a function needs a URL and a queue before it, "
            "such as: penstock worker sqlite:///jobs.db mail shop.mail:send"
        )
    return found
