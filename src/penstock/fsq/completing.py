"""Completing a work item, as functions: programs written for FSQ call these."""

from __future__ import annotations

from penstock.fsq.items import FSQWorkItem


def success(item: FSQWorkItem) -> None:
    """Move an item to `done`."""
    _checked(item).success()


def fail_perm(item: FSQWorkItem) -> str:
    """Move an item to `fail`, and give its id."""
    return _checked(item).fail_perm()


def fail_tmp(item: FSQWorkItem, max_tries: int | None = None, ttl: int | None = None) -> str:
    """Put an item back with one try more, and give its new id."""
    return _checked(item).fail_tmp(max_tries, ttl)


def fail(item: FSQWorkItem, fail_type: object = None, max_tries: int | None = None, ttl: int | None = None) -> str:
    """Complete an item as failed: for now if the type is FSQ_FAIL_TMP, else for good."""
    return _checked(item).fail(fail_type, max_tries, ttl)


def done(
    item: FSQWorkItem, done_type: object = None, max_tries: int | None = None, ttl: int | None = None
) -> str | None:
    """Complete an item: with success if the type is none or FSQ_SUCCESS, else as `fail` does."""
    return _checked(item).done(done_type, max_tries, ttl)


retry = fail_tmp


def _checked(item: FSQWorkItem) -> FSQWorkItem:
    if not isinstance(item, FSQWorkItem):
        raise TypeError(f"only a work item can be completed, not {type(item).__name__}")
    return item
