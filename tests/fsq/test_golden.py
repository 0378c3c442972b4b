"""Directories as the original leaves them, written down from its reference, and what ours makes of them.

Each golden directory is given as text: `path mode content`. Ours must read what is there, and what ours writes must be
such a directory again.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

import pytest

from penstock import fsq
from penstock.fsq import names

# What an original has left: items of several delimiters, arguments with everything in them, a retried one, a host.
ORIGINAL = """\
mail/ 2770
mail/tmp/ 2770
mail/queue/ 2770
mail/done/ 2770
mail/fail/ 2770
mail/queue/_20261115184212_0_18383_web1_0_a%5fb_50%25_x%2fy 0640 one
mail/queue/_20261115184211_0_18377_web1_0 0640 two
mail/queue/_20261115184211_0_18380_web1_0_ 0640 three
mail/queue/.20261115184213.0.18420.web1.0.dot%2eted.und_er 0640 four
mail/queue/_20261115184214_10_18421_web%5f1_2_é ü_%41 0640 five
mail/done/_20261115184200_0_18300_web1_0_old 0640 six
mail/hosts/ 2770
mail/hosts/far/ 2770
mail/hosts/far/tmp/ 2770
mail/hosts/far/queue/ 2770
mail/hosts/far/done/ 2770
mail/hosts/far/fail/ 2770
mail/hosts/far/queue/_20261115184209_0_18370_web1_0_h 0640 seven
"""


def lay_out(root: Path, text: str) -> None:
    for line in text.splitlines():
        path, mode, data = (re.fullmatch(r"(.+) ([0-7]{4})(?: (.*))?", line) or pytest.fail(line)).groups()
        if path.endswith("/"):
            (root / path).mkdir()
        else:
            (root / path).write_text(data or "")
        (root / path).chmod(int(mode, 8))


def written_down(root: Path) -> str:
    lines = []
    for path in root.rglob("*"):
        mode = f"{stat.S_IMODE(path.stat().st_mode):04o}"
        name = path.relative_to(root).as_posix()
        lines.append(f"{name}/ {mode}" if path.is_dir() else f"{name} {mode} {path.read_text()}".rstrip())
    return "\n".join(sorted(lines)) + "\n"


def test_what_the_original_left_is_read(root: Path) -> None:
    lay_out(root, ORIGINAL)
    seen = [
        (item.arguments, item.tries, item.hostname, item.entropy, item.item.read().decode())
        for item in fsq.scan("mail", max_tries=3)
    ]
    assert seen == [
        ((), 0, "web1", "0", "two"),
        (("",), 0, "web1", "0", "three"),
        (("a_b", "50%", "x/y"), 0, "web1", "0", "one"),
        (("dot.ted", "und_er"), 0, "web1", "0", "four"),
        (("é ü", "A"), 2, "web_1", "10", "five"),
    ]
    assert [(item.host, item.arguments) for item in fsq.scan("mail", host=True)] == [("far", ("h",))]
    (root / "mail/attempts").rmdir()
    (root / "mail/hosts/far/attempts").rmdir()
    assert written_down(root) == "\n".join(sorted(ORIGINAL.splitlines())) + "\n", "looking changes nothing"


def test_what_ours_completes_lies_where_the_original_puts_it(root: Path) -> None:
    lay_out(root, ORIGINAL)
    outcomes = iter([0, 100, 111, 111, 0])
    for item in fsq.scan("mail", max_tries=9):
        fsq.done(item, next(outcomes))
    left = written_down(root / "mail")
    for line in (
        "done/_20261115184211_0_18377_web1_0 0640 two",
        "fail/_20261115184211_0_18380_web1_0_ 0640 three",
        "queue/_20261115184212_0_18383_web1_1_a%5fb_50%25_x%2fy 0640 one",
        "queue/_20261115184213_0_18420_web1_1_dot.ted_und%5fer 0640 four",
        "done/_20261115184214_10_18421_web%5f1_2_é ü_%41 0640 five",
    ):
        assert f"{line}\n" in left


def test_what_ours_writes_is_a_directory_of_the_original(root: Path) -> None:
    before = os.umask(0o022)
    try:
        fsq.install("mail", hosts=["far"])
        for args in ((), ("",), ("a_b", "50%", "x/y"), ("é ü",)):
            fsq.senqueue("mail", "data", *args)
    finally:
        os.umask(before)
    found = written_down(root)
    directories = [line for line in ORIGINAL.splitlines() if re.search(r"/ \d+$", line)]
    assert [line for line in found.splitlines() if re.search(r"/ \d+$", line)] == sorted(directories)
    prefix = rf"mail/queue/_\d{{14}}_\d+_{os.getpid()}_{re.escape(fsq.encode(names.HOSTNAME))}_0"
    for rest in ("", "_", "_a%5fb_50%25_x%2fy", "_é ü"):
        assert re.search(rf"^{prefix}{re.escape(rest)} 0640 data$", found, re.MULTILINE), rest


def test_local_time_is_in_the_name(queue: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    def hour(zone: str) -> int:
        monkeypatch.setenv("TZ", zone)
        time.tzset()
        return names.parse(fsq.senqueue(queue, "")).enqueued_at.hour

    try:
        assert (hour("XXX-5") - hour("XXX+5")) % 24 in (9, 10, 11)
    finally:
        monkeypatch.undo()
        time.tzset()


def test_another_delimiter_is_obeyed_and_readable(queue: str) -> None:
    fsq.set_const("FSQ_DELIMITER", ".")
    name = fsq.senqueue(queue, "", "a.b_c")
    assert name.startswith(".")
    fsq.set_const("FSQ_DELIMITER", "_")
    with fsq.FSQWorkItem(queue, name, max_tries=3) as item:
        assert item.arguments == ("a.b_c",)
        assert item.fail_tmp().startswith("_")
