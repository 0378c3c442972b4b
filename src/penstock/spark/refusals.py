"""Errors of ours as one sentence, out of what Spark makes of them.

An error in a Python source comes to the program as one of Spark's, with the traceback of the worker in its text. Of a
refusal only the sentence is of use:

    without_traceback    for the classes that workers run: an error of ours leaves them without its traceback
    sentence_of          for the command line: the sentence in the text of an error of Spark's
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar

from penstock import errors
from penstock.errors import CallerError, OperatorError, PenstockError

SPARK_TEXT_MAX = 500  # characters of an error of Spark's
_OWN = re.compile(r"\bpenstock\.errors\.(\w+): (.+)")
# The line after a traceback's own, which are indented.
_PYTHON = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t]+.*\n)+(\S.*)")
_STATE = re.compile(r"\s*SQLSTATE: \w+\s*$")
_NOT_FOUND = "DATA_SOURCE_NOT_FOUND"

Kind = TypeVar("Kind", bound=type)


def without_traceback(kind: Kind) -> Kind:
    """A class whose public methods hide the traceback of errors of ours, where a worker of Spark runs them."""
    for name, method in list(vars(kind).items()):
        if not name.startswith("_") and inspect.isfunction(method):
            setattr(kind, name, _hiding(method))
    return kind


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
        # A worker reads this when it reports an error, and ends after that.
        if os.environ.get("SPARK_PYTHON_RUNTIME") == "PYTHON_WORKER":
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise


def sentence_of(text: str) -> PenstockError:
    """The sentence that says what is wrong: ours if there is one, else Python's last line, else the first line."""
    own = _OWN.findall(text)
    if own:
        name, said = own[-1]
        kind = getattr(errors, name, OperatorError)
        said = _STATE.sub("", said)[:SPARK_TEXT_MAX]
        return CallerError(said) if issubclass(kind, CallerError) else OperatorError(f"Spark failed: {said}")
    if _NOT_FOUND in text:
        return OperatorError(
            "Spark failed: its Python does not know the format penstock. Run `penstock spark doctor`: it says why."
        )
    of_python = _PYTHON.findall(text)
    said = of_python[-1] if of_python else text.strip().partition("\n")[0]
    return OperatorError(f"Spark failed: {_STATE.sub('', said)[:SPARK_TEXT_MAX]} (--spark-log shows the rest)")
