"""The generator of blocking forms: what it writes is what is there, and what it changes."""

from __future__ import annotations

from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]


def load_script() -> Any:
    loader = SourceFileLoader("blocking_script", str(ROOT / "scripts" / "blocking"))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


script = load_script()


def test_the_blocking_forms_are_those_of_their_sources() -> None:
    assert script.outdated() == [], "run `make blocking`"


def test_a_change_of_the_source_is_noticed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    source = tmp_path / "source.py"
    target = tmp_path / "target.py"
    monkeypatch.setattr(script, "files", lambda: {str(source): str(target)})
    source.write_text('"""Nothing."""\n')
    assert script.outdated() == [str(target)]
    target.write_text(script.written(str(source), str(target)))
    assert script.outdated() == []
    source.write_text('"""Something."""\n')
    assert script.outdated() == [str(target)]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("async def f():\n    pass\n", "def f():\n    pass\n"),
        ("x = await f(await g())\n", "x = f(g())\n"),
        ("async with a as b:\n    pass\n", "with a as b:\n    pass\n"),
        ("async for a in b:\n    pass\n", "for a in b:\n    pass\n"),
        ("[x async for x in y]\n", "[x for x in y]\n"),
        ("await (a if b else c)\n", "(a if b else c)\n"),
        ("from penstock.client.aio.pool import Turn\n", "from penstock.client.blocking.pool import Turn\n"),
        ("def f() -> AsyncIterator[int]: ...\n", "def f() -> Iterator[int]: ...\n"),
        ("def __aenter__(self): ...\n", "def __enter__(self): ...\n"),
        ("async_name = awaited = 1\n", "async_name = awaited = 1\n"),
        # Texts are left alone, prose is not.
        ('x = "await f()"\n', 'x = "await f()"\n'),
        ('def f():\n    """Use `await f()`."""\n', 'def f():\n    """Use `f()`."""\n'),
        ("# async with f: await it\n", "# with f: it\n"),
        ('"""They await, and async code too."""\n', '"""They await, and async code too."""\n'),
        ('x = f"{aio} {__aenter__}"\n', 'x = f"{aio} {__aenter__}"\n'),
        ("x = 'ä' + await f('ö')\n", "x = 'ä' + f('ö')\n"),
    ],
)
def test_what_becomes_of_it(source: str, expected: str) -> None:
    assert script.blocking_form(source) == expected


def test_the_result_has_the_form_of_the_house() -> None:
    long = f"async def f():\n    x = await g({'a' * 50!r}, {'b' * 53!r})\n"
    wrapped = script.house_form(long, "src/x.py")
    assert wrapped.count("\n") > 2
    assert script.house_form(script.blocking_form(wrapped), "src/x.py").count("\n") == 2


def test_a_written_file_says_where_it_is_from() -> None:
    for source, target in script.FILES.items():
        first = (ROOT / target).read_text("utf-8").partition("\n")[0]
        name = source.rpartition("/aio/")[2]
        assert first == f"# Written by scripts/blocking from ../aio/{name}: change that, then run `make blocking`."


def test_nothing_that_is_written_knows_an_event_loop() -> None:
    for target in script.FILES.values():
        text = (ROOT / target).read_text("utf-8")
        assert "asyncio" not in text
        assert "await " not in text


def test_the_check_says_what_is_out_of_date(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert script.main(["--check"]) == 0
    monkeypatch.setattr(script, "outdated", lambda: ["x.py"])
    assert script.main(["--check"]) == 1
    assert capsys.readouterr().out == "x.py is out of date: make blocking\n"
    assert script.main(["nonsense"]) == 2
