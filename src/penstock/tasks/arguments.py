"""The arguments of a task as JSON, written and checked by the annotations of its function.

Arguments are kept by name, also those that were given by position: `{"user_id": 42, "since": "2026-11-18T09:00:00Z"}`.
An argument that was left out is not kept, so the function's own default holds when it runs. `*rest` is a list under its
name, `**more` an object under its name.

A value is written by what it is, then read back by the annotation: so a call that the worker could not make fails where
it is pushed. What msgspec knows (dataclasses, attrs, TypedDict, enums, datetime, UUID, Decimal, bytes and so on) needs
nothing; a Path is a string; a pydantic model is what `model_dump` makes of it. A parameter without an annotation takes
any JSON.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePath
from typing import Any, NamedTuple, get_type_hints

import msgspec

from penstock.codec import to_json
from penstock.errors import BadPayload, CallerError

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_PATH = re.compile(r" - at `\$\.?(.*?)`$")


def encode_value(value: Any) -> Any:
    """Return a value as JSON has it: for msgspec, of types that it doesn't know."""
    if isinstance(value, PurePath):
        return str(value)
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    raise NotImplementedError(f"a value of type {type(value).__name__} can't be written as JSON")


def decode_value(kind: Any, value: Any) -> Any:
    """Return a value of a type that msgspec doesn't know."""
    if isinstance(kind, type) and issubclass(kind, PurePath) and isinstance(value, str):
        return kind(value)
    if hasattr(kind, "model_validate"):
        return kind.model_validate(value)
    if isinstance(kind, type) and isinstance(value, kind):
        return value
    wanted = getattr(kind, "__name__", kind)
    raise ValueError(f"expected {wanted}, got {type(value).__name__}")


def to_plain(value: Any) -> Any:
    """Return a value as dicts, lists, texts and numbers."""
    return msgspec.to_builtins(value, enc_hook=encode_value, str_keys=True)


def from_plain(value: Any, kind: Any) -> Any:
    """Return the value of a type. ValueError, with the path, if it doesn't fit."""
    return msgspec.convert(value, kind, dec_hook=decode_value, str_keys=True)


class BoundArguments(NamedTuple):
    """Arguments, ready for the function."""

    positional: Sequence[Any]
    named: Mapping[str, Any]


NO_ARGUMENTS = BoundArguments((), {})


class Arguments:
    """The parameters of one function."""

    def __init__(self, task: str, function: Callable[..., Any]) -> None:
        self._task = task
        self._function = function
        self._signature = inspect.signature(function)
        self._parameters = list(self._signature.parameters.values())
        self._names = [one.name for one in self._parameters if one.kind in _POSITIONAL]
        kinds = {one.kind for one in self._parameters}
        # A call that gives all by name, or simply by position, is bound without inspect, which is slow.
        self._is_plain = kinds <= {inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY}
        self._known = frozenset(self._signature.parameters)
        self._required = frozenset(one.name for one in self._parameters if one.default is inspect.Parameter.empty)
        self._struct: Any = None
        self.returns: Any = Any

    def prepare(self) -> None:
        """Read the annotations. CallerError for one that can't be found, or is not for JSON."""
        if self._struct is not None:
            return
        try:
            hints = get_type_hints(self._function, include_extras=True)
        except Exception as problem:  # an annotation is code of the application
            raise CallerError(
                f"the annotations of task {self._task} can't be read: {problem}. The worker needs their types at run "
                "time: import them outside `if TYPE_CHECKING`"
            ) from problem
        fields: list[Any] = []
        for one in self._parameters:
            kind: Any = hints.get(one.name, Any)
            if one.kind is inspect.Parameter.VAR_POSITIONAL:
                kind = list[kind]
            elif one.kind is inspect.Parameter.VAR_KEYWORD:
                kind = dict[str, kind]
            self._check(f"parameter {one.name}", kind)
            fields.append((one.name, kind | msgspec.UnsetType if kind is not Any else Any, msgspec.UNSET))
        self.returns = hints.get("return", Any)
        self._check("the result", self.returns)
        self._struct = msgspec.defstruct("Arguments", fields, forbid_unknown_fields=True, kw_only=True)

    def _check(self, what: str, kind: Any) -> None:
        try:
            msgspec.json.Decoder(kind, dec_hook=decode_value)
        except Exception as problem:  # whatever msgspec raises for a type that it refuses
            raise CallerError(f"task {self._task}: {what} can't be read from JSON: {problem}") from problem

    def encode(self, args: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call as JSON has them. TypeError as Python raises it; BadPayload, with a name."""
        self.prepare()
        if not args and not named and self._is_plain and not self._required:
            return {}
        return self._checked(self._bound(args, named))

    @property
    def first(self) -> str:
        """The name of the first parameter; CallerError if no result can be given to it."""
        if not self._names:
            raise CallerError(f"task {self._task} has no first parameter that could take the result of another call")
        return self._names[0]

    @property
    def needs_first(self) -> bool:
        """Whether the first parameter must be given, and could take a result."""
        return bool(self._names) and self._names[0] in self._required

    def encode_rest(self, args: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call without the first one, as `encode` does."""
        self.prepare()
        rest = self._signature.replace(parameters=self._parameters[1:])
        try:
            bound = rest.bind(*args, **named).arguments
        except TypeError as problem:
            raise TypeError(f"{self._task}: {problem}") from None
        return self._checked(bound)

    def _checked(self, bound: Mapping[str, Any]) -> dict[str, Any]:
        plain = {}
        for name, value in bound.items():
            try:
                plain[name] = to_plain(value)
            except Exception as problem:  # values are the application's
                raise BadPayload(f"task {self._task}: argument {name} can't be pushed: {problem}") from problem
        try:
            from_plain(plain, self._struct)
        except Exception as problem:  # the same
            raise BadPayload(f"task {self._task}: {_named(problem)}") from problem
        return plain

    def blamed(self, plain: Mapping[str, Any], problem: BadPayload) -> BadPayload:
        """Return the error with the name of the argument that can't be JSON: one that has NaN, for example."""
        for name, value in plain.items():
            try:
                to_json(value)
            except BadPayload as own:
                return BadPayload(f"task {self._task}: argument {name} can't be pushed: {own}")
        return problem

    def _bound(self, args: Sequence[Any], named: Mapping[str, Any]) -> Mapping[str, Any]:
        if self._is_plain and len(args) <= len(self._names):
            bound = dict(zip(self._names, args, strict=False))
            if bound.keys().isdisjoint(named):
                bound.update(named)
                if self._required <= bound.keys() <= self._known:
                    return bound
        try:
            return self._signature.bind(*args, **named).arguments
        except TypeError as problem:
            raise TypeError(f"{self._task}: {problem}") from None

    def decode(self, plain: Any) -> BoundArguments:
        """Return stored arguments for the function. ValueError, with a name, if they don't fit it."""
        if plain == {} and self._is_plain and not self._required:
            return NO_ARGUMENTS
        self.prepare()
        try:
            found = from_plain(plain, self._struct)
        except Exception as problem:  # hooks are the application's
            raise ValueError(_named(problem)) from problem
        # The struct knows no other names than those of the parameters, so all that were stored are in it.
        given = {name: getattr(found, name) for name in plain}
        if self._is_plain:
            if not self._required <= given.keys():
                raise ValueError(f"argument {min(self._required - given.keys())} is missing")
            return BoundArguments((), given)
        bound = self._signature.bind_partial()
        bound.arguments.update(given)
        try:
            self._signature.bind(*bound.args, **bound.kwargs)
        except TypeError as problem:
            raise ValueError(str(problem)) from problem
        return BoundArguments(bound.args, bound.kwargs)


def _named(problem: Exception) -> str:
    """Return msgspec's error with the path in front: `argument user_id: expected int, got str`."""
    text = str(problem).replace("`", "")
    found = _PATH.search(str(problem))
    if found is None:
        unknown = re.search(r"unknown field (\S+)", text)
        return f"there is no parameter {unknown[1]}" if unknown else f"the arguments must be an object: {text}"
    text = _PATH.sub("", str(problem)).replace("`", "")
    if not found[1]:
        return f"the arguments must be an object: {text}"
    return f"argument {found[1]}: {text[:1].lower()}{text[1:].replace(' | unset', '')}"
