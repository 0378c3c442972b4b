"""Errors on their way through Spark: which calls are retried, and how errors of ours stay one sentence.

An error in a Python source reaches the program as one of Spark's, with the traceback of the worker in its text. For an
error of ours only the sentence is of use:

    retry_while_unreachable    repeats a call to a store that can't be reached, for a minute
    without_traceback          for classes that workers run: errors of ours leave them without a traceback
    sentence_of                for the command line: the sentence in the text of an error of Spark's
"""

from __future__ import annotations

import inspect
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar

from penstock import errors
from penstock.errors import CallerError, ConnectionLost, OperatorError, PenstockError

SPARK_TEXT_MAX = 500  # characters of an error of Spark's
_OWN = re.compile(r"\bpenstock\.errors\.(\w+): (.+)")
# The line after a traceback's own, which are indented.
_PYTHON = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t]+.*\n)+(\S.*)")
_STATE = re.compile(r"\s*SQLSTATE: \w+\s*$")
_NOT_FOUND = "DATA_SOURCE_NOT_FOUND"

OUTAGE_S_MAX = 60.0  # a store that is unreachable for longer fails the query; whatever runs the query starts it again
OUTAGE_PAUSE_S = 0.5

AnyClass = TypeVar("AnyClass", bound=type)
Result = TypeVar("Result")


def retry_while_unreachable(
    call: Callable[[], Result], repeated: tuple[type[PenstockError], ...] = (ConnectionLost,)
) -> Result:
    """Make a call again while the store can't be reached, for up to OUTAGE_S_MAX."""
    until = time.monotonic() + OUTAGE_S_MAX
    while True:
        try:
            return call()
        except repeated:
            if time.monotonic() >= until:
                raise
            time.sleep(OUTAGE_PAUSE_S)


def is_in_worker() -> bool:
    """Whether this process is a worker of Spark: it runs data sources, and reports their errors."""
    return os.environ.get("SPARK_PYTHON_RUNTIME") == "PYTHON_WORKER"


def without_traceback(decorated: AnyClass) -> AnyClass:
    """Decorate a class: its public methods hide the traceback of errors of ours, where a worker of Spark runs them."""
    for name, method in list(vars(decorated).items()):
        if not name.startswith("_") and inspect.isfunction(method):
            setattr(decorated, name, _hiding(method))
    return decorated


def _hiding(method: Callable[..., Any]) -> Callable[..., Any]:
    if inspect.isgeneratorfunction(method):

        @wraps(method)
        def run_generator(*args: Any, **named: Any) -> Iterator[Any]:
            with _hidden_traceback():
                yield from method(*args, **named)

        return run_generator

    @wraps(method)
    def run(*args: Any, **named: Any) -> Any:
        with _hidden_traceback():
            return method(*args, **named)

    return run


@contextmanager
def _hidden_traceback() -> Iterator[None]:
    try:
        yield
    except PenstockError:
        # Read by the worker when it reports an error, after which it ends.
        if is_in_worker():
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise


def sentence_of(text: str) -> PenstockError:
    """Return the error in a text of Spark's: ours if there is one, else Python's last line, else the first line."""
    own = _OWN.findall(text)
    if own:
        name, said = own[-1]
        kind = getattr(errors, name, OperatorError)
        said = _STATE.sub("", said)[:SPARK_TEXT_MAX]
        return CallerError(said) if issubclass(kind, CallerError) else OperatorError(f"Spark failed: {said}")
    if _NOT_FOUND in text:
        return OperatorError(
            "Spark failed: its Python does not find the format penstock. `penstock spark doctor` says why."
        )
    of_python = _PYTHON.findall(text)
    said = of_python[-1] if of_python else text.strip().partition("\n")[0]
    return OperatorError(f"Spark failed: {_STATE.sub('', said)[:SPARK_TEXT_MAX]} (--spark-log shows the rest)")
