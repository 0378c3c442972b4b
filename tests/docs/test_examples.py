"""Every example of the documentation runs, and prints what the page says. `examples.py` tells what a block means."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.examples import PAGES, ROOT, Reader, Values, blocks_of, steps_of
from tests.processes import need_module

ID = "D-11111111-aaaaaaaaaaaaaaaaaaaaaaaa-05a1"
REAL_ID = "D-22222222-bbbbbbbbbbbbbbbbbbbbbbbb-05a1"
OTHER_ID = "D-22222222-cccccccccccccccccccccccc-05a1"
WITH_EXAMPLES = [
    page
    for page in PAGES
    if any(block.language in ("console", "python", "conf") for block in blocks_of(page.read_text("utf-8")))
]
# What no page shows, and everybody writes.
HANDLERS = """\
from datetime import timedelta

import penstock
import penstock.blocking


async def forward(job: penstock.Job) -> str:
    await job.queue.store.queue("other").push(job.payload, delay=timedelta(minutes=1))
    return await job.queue.push(job.body, headers=job.headers)


def forward_in_a_thread(job: penstock.blocking.Job) -> str:
    return job.queue.push(job.payload, unique=job.id)


def first(queue: penstock.blocking.Queue) -> float | None:
    job = queue.reserve()
    job.nack(timedelta(seconds=5))
    last = queue.pop(timeout=0)
    return job.created if last is None else last.created
"""
LANGUAGES = {"console", "python", "conf", "sh", "text", "toml", ""}


@pytest.mark.system
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", WITH_EXAMPLES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_examples_of_a_page_do_what_it_says(page: Path, tmp_path: Path) -> None:
    reader = Reader(page, tmp_path)
    try:
        reader.read()
    finally:
        reader.leave()


@pytest.mark.system
@pytest.mark.timeout(600)
def test_every_python_example_passes_mypy_strict(tmp_path: Path) -> None:
    need_module("mypy")
    names: dict[str, str] = {}
    for page in PAGES:
        folder = tmp_path / re.sub(r"\W", "_", str(page.relative_to(ROOT)))
        blocks = [block for block in blocks_of(page.read_text("utf-8")) if block.language == "python"]
        own = "|".join(block.name().removesuffix(".py") for block in blocks if block.name())
        for block in blocks:
            folder.mkdir(exist_ok=True)
            file = folder / (block.name() or f"line_{block.line}.py")
            # The programs of a page import one another; here they are in the package of the page.
            text = re.sub(rf"^from ({own}) import", rf"from {folder.name}.\1 import", block.text, flags=re.MULTILINE)
            file.write_text(text if own else block.text, "utf-8")
            names[str(file.relative_to(tmp_path))] = f"{page.relative_to(ROOT)}, example in line {block.line}"
    (tmp_path / "handlers.py").write_text(HANDLERS, "utf-8")
    # Each page is a package, as several have a work.py. What mypy knows of our own modules is kept between runs.
    mypy = [sys.executable, "-m", "mypy", "--strict", "--explicit-package-bases", "--namespace-packages"]
    mypy += ["--disable-error-code", "import-untyped"]  # pandas and pyarrow bring no types
    cache = ROOT / ".cache" / "mypy-examples"
    done = subprocess.run(
        [*mypy, "--cache-dir", str(cache), "."], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    told = done.stdout + done.stderr
    for file, where in names.items():
        told = told.replace(file, where)
    assert done.returncode == 0, told


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_uses_only_blocks_that_mean_something(page: Path) -> None:
    text = page.read_text("utf-8")
    blocks = blocks_of(text)
    assert {block.language for block in blocks} <= LANGUAGES
    assert text.count("\n```") + text.startswith("```") == 2 * len(blocks), "a fence is not closed"
    for block in blocks:
        assert block.language != "console" or block.text.startswith("$ "), f"line {block.line}"


def fits(expected: str, printed: str) -> bool:
    return Values().fit(expected.splitlines(), printed.splitlines())


@pytest.mark.parametrize(
    ("expected", "printed"),
    [
        ("", ""),
        ("a\nb", "a\nb"),
        ("...", ""),
        ("...", "a\nb"),
        ("a\n...\nz", "a\nm\nz"),
        ("size=..., ok", "size=12, ok"),
        (ID, REAL_ID),
        (f"{ID}\n{ID}", f"{REAL_ID}\n{REAL_ID}"),
        ("NAME  SIZE\na        1", "NAME    SIZE\na        1"),
        ("0a1b2c3d  node-1\n0a1b2c3d", "ffff0000  node-1\nffff0000"),
    ],
)
def test_what_fits_is_found_to_fit(expected: str, printed: str) -> None:
    assert fits(expected, printed)


@pytest.mark.parametrize(
    ("expected", "printed"),
    [
        ("a", ""),
        ("", "a"),
        ("a", "a\nb"),
        ("a\n...", "b"),
        ("size=..., ok", "size=12, bad"),
        (ID, "D-nonsense"),
        ("NAME  SIZE", "NAME SIZE"),
        ("one blank", "one  blank"),
        ("0a1b2c3d  node-1\n0a1b2c3d", "ffff0000  node-1\n0000ffff"),
        (f"{ID}\n{ID}", f"{REAL_ID}\n{OTHER_ID}"),
    ],
)
def test_what_differs_is_found_to_differ(expected: str, printed: str) -> None:
    assert not fits(expected, printed)


def test_an_id_of_a_page_becomes_the_id_of_the_run_in_later_commands() -> None:
    values = Values()
    assert values.fit([ID], [REAL_ID])
    assert values.fill(f"penstock cli ACKJOB {ID}") == f"penstock cli ACKJOB {REAL_ID}"


def test_a_console_block_is_cut_into_commands_and_their_output() -> None:
    steps = steps_of("$ one\n1\n2\n$ two\n")
    assert [(step.command, step.expected) for step in steps] == [("one", ["1", "2"]), ("two", [])]
