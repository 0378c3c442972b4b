"""A wheel of this tree works in an environment that has nothing but it and what it declares.

No network is used: the environment gets copies of the declared packages from the one that runs the tests, and the
builds run without isolation, on the tools that `make setup` installed. That takes seconds, can't fail for a server's
sake, and shows that the declared packages suffice. The compiled modules come from the cache of `scripts/native`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.docs.examples import ROOT, Reader
from tests.processes import lacking, need_module, need_program

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]

FIRST_TUTORIAL = ROOT / "docs" / "tutorial" / "first-queue.md"
BUILD_TOOLS = ("hatchling", "mypy", "setuptools")
# What a user's shell has, without the settings of the tests.
PLAIN = {name: value for name, value in os.environ.items() if name not in ("PENSTOCK_PURE", "PYTHONPATH", "CC")}


def run(*words: str | Path, cwd: Path, **environment: str) -> str:
    done = subprocess.run(
        [str(word) for word in words],
        cwd=cwd,
        env={**PLAIN, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout.strip()


def build_wheel(tree: Path, directory: Path, **environment: str) -> Path:
    """Build a wheel the way `pip install` does it."""
    for name in BUILD_TOOLS:
        need_module(name)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--no-index", "--no-deps"]
    printed = run(*pip, "--no-build-isolation", "--wheel-dir", directory, tree, cwd=directory, **environment)
    wheels = list(directory.glob("*.whl"))
    assert len(wheels) == 1, printed
    return wheels[0]


def declared_packages(name: str) -> set[str]:
    """Return the names of everything that a package needs, without its extras."""
    from packaging.requirements import Requirement

    wanted, left = set[str](), [Requirement(name)]
    while left:
        requirement = left.pop()
        if requirement.name in wanted:
            continue
        wanted.add(requirement.name)
        extras = ["", *requirement.extras]
        for text in distribution(requirement.name).requires or []:
            needed = Requirement(text)
            if needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in extras):
                left.append(needed)
    return wanted - {name}


@dataclass
class Environment:
    """A virtual environment with a wheel and the packages that it declares."""

    folder: Path
    wheel: Path

    @classmethod
    def make(cls, folder: Path, wheel: Path) -> Environment:
        venv.create(folder, symlinks=True)
        made = cls(folder, wheel)
        packages = Path(run(made.python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder))
        for name in declared_packages("penstock"):
            for file in distribution(name).files or []:
                source = Path(str(file.locate()))
                if ".." not in file.parts and "__pycache__" not in file.parts and source.is_file():
                    (packages / file).parent.mkdir(parents=True, exist_ok=True)
                    (packages / file).write_bytes(source.read_bytes())
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", made.python]
        run(*pip, "install", "--no-index", wheel, cwd=folder)
        return made

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    def read_page(self, page: Path, directory: Path) -> None:
        directory.mkdir()
        reader = Reader(page, directory, installed=self.python)
        try:
            reader.read()
        finally:
            reader.leave()


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Unpack a source distribution of the tree."""
    need_module("hatchling")
    folder = tmp_path_factory.mktemp("sdist")
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", folder, cwd=ROOT)
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as files:
        files.extractall(folder, filter="data")
    return folder / archive.name.removesuffix(".tar.gz")


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """Make an environment with a wheel that was built on a machine with a C compiler."""
    need_program("cc")
    if not Path(sysconfig.get_paths()["include"], "Python.h").exists():
        lacking("Python's header files")
    folder = tmp_path_factory.mktemp("compiled")
    return Environment.make(folder / "environment", build_wheel(ROOT, folder))


@pytest.fixture(scope="module")
def pure(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """Make an environment with a wheel that was built from the source distribution, with a compiler that fails."""
    folder = tmp_path_factory.mktemp("pure")
    return Environment.make(folder / "environment", build_wheel(sdist, folder, CC="false"))


def test_a_wheel_has_compiled_modules_and_uses_them(compiled: Environment, tmp_path: Path) -> None:
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    assert f"-{tag}-{tag}" in compiled.wheel.name
    told = run(compiled.folder / "bin" / "penstock", "--version", cwd=tmp_path)
    assert told == f"penstock {distribution('penstock').version} (compiled modules)"
    origin = "import penstock.wire.record as m; print(m.__file__)"
    assert run(compiled.python, "-c", origin, cwd=tmp_path).startswith(str(compiled.folder))


def test_the_compiled_modules_are_used_whatever_the_times_of_the_files_are(
    compiled: Environment, tmp_path: Path
) -> None:
    """An installer writes the files in any order, so a source may be younger than its compiled form."""
    where = "import penstock.wire as m; print(m.__path__[0])"
    (Path(run(compiled.python, "-c", where, cwd=tmp_path)) / "record.py").touch()
    assert run(compiled.folder / "bin" / "penstock", "--version", cwd=tmp_path).endswith(" (compiled modules)")


def test_the_first_tutorial_runs_with_an_installed_wheel(compiled: Environment, tmp_path: Path) -> None:
    compiled.read_page(FIRST_TUTORIAL, tmp_path / "tutorial")


def test_the_declared_packages_fit_their_ranges(compiled: Environment, tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", compiled.python]
    assert run(*pip, "check", cwd=tmp_path) == "No broken requirements found."


def test_fsq_comes_with_the_package(compiled: Environment, tmp_path: Path) -> None:
    run(compiled.python, "-c", "import fsq; fsq.enqueue", cwd=tmp_path)
    assert run(compiled.folder / "bin" / "fsq", "--version", cwd=tmp_path).startswith("fsq ")
    assert (compiled.folder / "share" / "man" / "man1" / "fsq.1").is_file()


def test_without_a_working_compiler_the_wheel_is_pure_and_works(pure: Environment, tmp_path: Path) -> None:
    assert pure.wheel.name.endswith("-py3-none-any.whl")
    told = run(pure.folder / "bin" / "penstock", "--version", cwd=tmp_path)
    assert told.endswith(" (plain modules: nothing is compiled)")
    pure.read_page(FIRST_TUTORIAL, tmp_path / "tutorial")


@pytest.mark.parametrize("environment", [{"PATH": "/nonexistent"}, {"PENSTOCK_PURE": "1"}], ids=["no compiler", "pure"])
def test_a_build_that_can_not_or_shall_not_compile_is_pure(
    sdist: Path, tmp_path: Path, environment: dict[str, str]
) -> None:
    wheel = build_wheel(sdist, tmp_path, **environment)
    assert wheel.name.endswith("-py3-none-any.whl")
    with ZipFile(wheel) as files:
        assert [name for name in files.namelist() if name.endswith(".so")] == []


def test_the_source_distribution_compiles_to_the_same_modules(
    compiled: Environment, sdist: Path, tmp_path: Path
) -> None:
    """With the cache of the tree, which is found only if every file that it was made from is in it, unchanged."""
    (sdist / ".cache").mkdir(exist_ok=True)
    link = sdist / ".cache" / "native"
    link.symlink_to(ROOT / ".cache" / "native")
    try:
        wheel = build_wheel(sdist, tmp_path)
    finally:
        link.unlink()
    with ZipFile(wheel) as ours, ZipFile(compiled.wheel) as trees:
        assert {file.filename: file.CRC for file in ours.infolist()} == {
            file.filename: file.CRC for file in trees.infolist()
        }


def test_the_build_requires_what_compiling_needs(sdist: Path) -> None:
    required = tomllib.loads((sdist / "pyproject.toml").read_text())["build-system"]["requires"]
    assert {text.partition(">")[0] for text in required} >= set(BUILD_TOOLS)
