"""Names and escapes: what was written can be read, and whatever lies in a directory can be looked at."""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from penstock import fsq
from penstock.fsq import names
from penstock.fsq.snapshot import parts, row

ASCII = st.characters(min_codepoint=1, max_codepoint=127, exclude_characters="/")
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
ARGUMENTS = st.lists(TEXT, max_size=6)
FILE_NAMES = st.binary(min_size=1, max_size=80).map(lambda raw: raw.replace(b"/", b"x").replace(b"\0", b"y"))
LIKE_ITEMS = st.builds(
    lambda fields: "_" + "_".join(fields),
    st.lists(st.text(st.sampled_from("0123456789%5f2e_-+ aé\udcff")), max_size=8),
)


def item_name(*args: object, tries: int = 0) -> str:
    return fsq.construct(["20261115184212", 0, 18383, "web1", tries, *args])


@given(fields=ARGUMENTS, mark=ASCII, escape=ASCII)
@example(fields=["a/b"], mark="f", escape="%")
@example(fields=["", ""], mark="_", escape="%")
@example(fields=["2", "5%25_5f"], mark="5", escape="2")
@settings(max_examples=500, deadline=None)
def test_fields_come_back_as_they_were(fields: list[str], mark: str, escape: str) -> None:
    assume(mark != escape)
    name = names.construct(fields, mark, escape)
    assert "/" not in name
    expected = [] if fields in ([], [""]) else fields
    assert names.deconstruct(name, escape) == (mark, expected)


@given(text=TEXT, mark=ASCII, escape=ASCII)
@settings(deadline=None)
def test_an_argument_comes_back_as_it_was(text: str, mark: str, escape: str) -> None:
    assume(mark != escape)
    encoded = fsq.encode(text, mark, escape)
    assert mark not in encoded.replace(f"{escape}{ord(mark):02x}", "") or mark in "0123456789abcdef"
    assert fsq.decode(encoded, mark, escape) == text


@given(arguments=ARGUMENTS, tries=st.integers(0, 10**6), more=st.integers(1, 9))
@settings(deadline=None)
def test_the_arguments_of_an_item_come_back_in_every_try(arguments: list[str], tries: int, more: int) -> None:
    parsed = names.parse(item_name(*arguments, tries=tries))
    assert (parsed.arguments, parsed.tries) == (tuple(arguments), tries)
    again = names.parse(parsed.with_tries(tries + more))
    assert (again.arguments, again.tries, again.job_id) == (tuple(arguments), tries + more, parsed.job_id)


@given(raw=FILE_NAMES)
@settings(max_examples=500, deadline=None)
def test_any_name_that_a_file_system_allows_is_read_or_refused(raw: bytes) -> None:
    name = os.fsdecode(raw)
    assert parts(row(name, "h")) == (name, "h")
    try:
        parsed = names.parse(name)
    except fsq.FSQError:
        return
    assert isinstance(parsed.tries, int)


@given(name=LIKE_ITEMS)
@example(name="_20261115184212_0_1_web_0_%00")
@settings(max_examples=500, deadline=None)
def test_names_that_look_like_items_are_read_or_refused(name: str) -> None:
    try:
        parsed = names.parse(name)
    except fsq.FSQError:
        return
    again = parsed.with_tries(parsed.tries)
    assert "\0" not in again + parsed.job_id
    assert names.parse(again) == parsed._replace(delimiter="_")


@pytest.mark.parametrize(
    ("args", "name"),
    [
        ((), "_20261115184212_0_18383_web1_0"),
        (("",), "_20261115184212_0_18383_web1_0_"),
        (("a_b", "50%", "x/y"), "_20261115184212_0_18383_web1_0_a%5fb_50%25_x%2fy"),
        (("é ü\n\x7f*.",), "_20261115184212_0_18383_web1_0_é ü\n\x7f*."),
        ((1, 2.5, True, b"b"), "_20261115184212_0_18383_web1_0_1_2.5_True_b"),
    ],
)
def test_names_are_those_of_the_original(args: tuple[object, ...], name: str) -> None:
    assert item_name(*args) == name
    assert names.parse(name).arguments == tuple(fsq.construct([arg])[1:] and _text(arg) for arg in args)


def _text(arg: object) -> str:
    return arg.decode() if isinstance(arg, bytes) else str(arg)


def test_a_name_has_its_own_delimiter() -> None:
    parsed = names.parse(".20261115184213.0.18420.web1.0.dot%2eted.und_er")
    assert parsed.delimiter == "."
    assert parsed.arguments == ("dot.ted", "und_er")
    assert parsed.enqueued_at == datetime(2026, 11, 15, 18, 42, 13)  # noqa: DTZ001 - as in the name
    assert parsed.with_tries(1) == "_20261115184213_0_18420_web1_1_dot.ted_und%5fer"


@pytest.mark.parametrize("text", ["%", "%4", "a%2", "%zz", "%0x", "%+1", "% 1", "%_b", "%1_", "%80", "%ff", "%²³"])
def test_a_bad_escape_is_refused(text: str) -> None:
    with pytest.raises(fsq.FSQEncodeError):
        fsq.decode(text)


@pytest.mark.parametrize(("text", "plain"), [("%5F", "_"), ("%41%00", "A\0"), ("%2f%2F", "//"), ("é%25", "é%")])
def test_escapes_are_read_in_either_case(text: str, plain: str) -> None:
    assert fsq.decode(text) == plain


@pytest.mark.parametrize(("mark", "escape"), [("__", "%"), ("é", "%"), ("%", "%"), ("_", "%%"), ("_", "ü"), ("", "%")])
def test_marks_that_can_not_be_are_refused(mark: str, escape: str) -> None:
    with pytest.raises(fsq.FSQEncodeError):
        fsq.encode("x", mark, escape)


@pytest.mark.parametrize("value", [None, object(), ["a"], b"\xff"])
def test_a_value_without_text_is_refused(value: object) -> None:
    with pytest.raises(fsq.FSQCoerceError):
        fsq.encode(value)


def test_further_characters_can_be_escaped() -> None:
    assert fsq.encode("a\tb", encoded=["\t"]) == "a%09b"
    with pytest.raises(fsq.FSQEncodeError):
        fsq.encode("x", encoded=["é"])


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("", fsq.FSQMalformedEntryError),
        ("_", fsq.FSQMalformedEntryError),
        ("_20261115184212_0_1_web1", fsq.FSQMalformedEntryError),
        ("%20261115184212%0%1%web1%0", fsq.FSQEncodeError),
        ("é20261115184212é0é1éweb1é0", fsq.FSQEncodeError),
        ("_2020_0_1_web1_0", fsq.FSQTimeFmtError),
        ("_20261315184212_0_1_web1_0", fsq.FSQTimeFmtError),
        ("_٢٠٢٦١١١٥١٨٤٢١٢_0_1_web1_0", fsq.FSQTimeFmtError),
        ("_20261115184212_0_1_web1_x", fsq.FSQTimeFmtError),
        ("_20261115184212_0_1_web1_1%5f0", fsq.FSQTimeFmtError),
        ("_20261115184212_0_1_web1_", fsq.FSQTimeFmtError),
        ("_20261115184212_0_1_web1_٣", fsq.FSQTimeFmtError),
        ("_20261115184212_0_1_web1_0_\udcff", fsq.FSQEncodeError),
    ],
)
def test_a_name_of_no_item_is_refused(name: str, error: type[fsq.FSQError]) -> None:
    with pytest.raises(error):
        names.parse(name)


def test_another_time_format_is_obeyed() -> None:
    fsq.set_const("FSQ_TIMEFMT", "%Y-%m-%dT%H:%M:%S.%f")
    name = names.fresh_name(["x"])
    assert names.parse(name).time_text[10] == "T"


def test_names_of_one_second_differ_in_their_entropy(monkeypatch: pytest.MonkeyPatch) -> None:
    fsq.set_const("FSQ_TIMEFMT", "%Y")
    made = [names.fresh_name([]) for _ in range(12)]
    assert len(set(made)) == 12
    first = int(made[0].split("_")[2])
    assert [int(name.split("_")[2]) for name in made] == list(range(first, first + 12))
    monkeypatch.setattr(os, "getpid", lambda: 1)
    assert names.fresh_name([]).split("_")[2] == "0"


def test_the_empty_list_and_the_empty_text_look_alike() -> None:
    assert fsq.construct([]) == fsq.construct([""]) == "_"
    assert fsq.deconstruct("_") == ("_", [])


def test_a_text_is_no_list_of_fields(root: Path) -> None:
    with pytest.raises(TypeError):
        fsq.construct("abc")
    with pytest.raises(TypeError):
        fsq.venqueue("mail", 0, "abc")
