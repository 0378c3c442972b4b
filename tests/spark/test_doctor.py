"""`penstock spark doctor` says in a sentence what is wrong with the environment of a plain SparkSession."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="Spark is not installed: pip install 'penstock[spark]'")

from penstock.cli.spark import run
from penstock.spark.doctor import VERSIONS, findings
from penstock.spark.errors import sentence_of

ROOT = Path(__file__).resolve().parents[2]
HERE = str(Path(sys.executable).parent)
# What a developer's own environment says of these is not meant.
OWN = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_HOME", "JAVA_HOME", "PYTHONPATH")


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """One in which all is right; the path begins with this Python, as in a virtual environment that is active."""
    for name in OWN:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", f"{HERE}:{os.environ['PATH']}")
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    monkeypatch.setenv("JAVA_HOME", java_of(tmp_path, 'openjdk version "17.0.9" 2023-10-17'))
    return monkeypatch


def wrong(url: str | None = None) -> str:
    """The one thing that is wrong."""
    [found] = [finding.text for finding in findings(url) if not finding.is_ok]
    return found


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a Python that has no packages."""
    home = tmp_path_factory.mktemp("bare")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True)
    return home / "bin"


def java_of(directory: Path, says: str) -> str:
    """A JAVA_HOME with a Java that says this of itself."""
    java = directory / "bin" / "java"
    java.parent.mkdir(exist_ok=True)
    java.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    java.chmod(0o755)
    return str(directory)


def test_where_all_is_right_it_exits_with_0_and_else_with_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", f"sqlite:///{tmp_path}/jobs.db"]) == 0
    assert all(line.startswith("ok ") for line in capsys.readouterr().out.splitlines())
    assert not (tmp_path / "jobs.db").exists()
    assert run(["doctor", "memory:"]) == 1
    assert (
        "wrong  url must be a store that processes can share, such as sqlite:///jobs.db, got memory:"
        in capsys.readouterr().out
    )


def test_a_python_on_the_path_without_penstock_is_named_with_what_to_do(
    environment: pytest.MonkeyPatch, bare_python: Path
) -> None:
    environment.setenv("PATH", f"{bare_python}:/usr/bin:/bin")
    text = wrong()
    assert f"python3 on the PATH ({bare_python}/python3), which can't import penstock" in text
    assert "DATA_SOURCE_NOT_FOUND" in text
    assert text.endswith(f"Set PYSPARK_PYTHON={sys.executable}, or activate this environment")


def test_a_python_of_the_environment_without_penstock_is_named(
    environment: pytest.MonkeyPatch, bare_python: Path
) -> None:
    environment.setenv("PYSPARK_PYTHON", f"{bare_python}/python")
    assert f"PYSPARK_PYTHON={bare_python}/python, which can't import penstock" in wrong()
    environment.setenv("PYSPARK_DRIVER_PYTHON", "/bin/false")
    text = wrong()
    assert "PYSPARK_DRIVER_PYTHON=/bin/false, which can't be started" in text
    assert text.endswith("and unset PYSPARK_DRIVER_PYTHON")


@pytest.mark.parametrize(
    ("says", "complaint"),
    [
        ('openjdk version "11.0.2" 2019-01-15', "Java must be 17 or newer, got 11"),
        ('java version "1.8.0_292"', "Java must be 17 or newer, got 8"),
        ("Unrecognized option", "java -version must print a version, got 'Unrecognized option'"),
    ],
)
def test_a_java_that_is_too_old_or_does_not_run_is_named(tmp_path: Path, says: str, complaint: str) -> None:
    java_of(tmp_path, says)
    assert complaint in wrong()


def test_a_java_home_without_java_is_named(tmp_path: Path) -> None:
    (tmp_path / "bin" / "java").unlink()
    assert f"JAVA_HOME={tmp_path} has no Java that can be started" in wrong()


def test_a_spark_of_another_version_is_named(environment: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "spark-core_2.13-3.5.0.jar").touch()
    environment.setenv("SPARK_HOME", str(tmp_path))
    assert f"got spark-core_2.13-3.5.0 in {tmp_path}" in wrong()


def test_the_versions_are_those_that_the_extra_installs() -> None:
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["spark"]
    wanted = {}
    for name, first, end in (re.fullmatch(r"(\w+)>=([\d.]+)(?:,<([\d.]+))?", word).groups() for word in extra):  # type: ignore[union-attr] # else the test fails
        wanted[name] = tuple(tuple(map(int, number.split("."))) if number else None for number in (first, end))
    assert wanted == VERSIONS


def test_a_format_that_spark_did_not_find_is_reported_in_a_sentence() -> None:
    text = "An error occurred while calling o31.load.\n: SparkClassNotFoundException: [DATA_SOURCE_NOT_FOUND]\n\tat x"
    assert str(sentence_of(text)).endswith("`penstock spark doctor` says why.")
