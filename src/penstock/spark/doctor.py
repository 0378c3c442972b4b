"""Checks whether a plain `SparkSession` finds `format("penstock")` on this machine, and says what is wrong.

`local_session` and the commands of `penstock spark` find a Java and a Python by themselves. A session that a program
makes itself uses the environment, and errors in that show as long tracebacks of Java.

    packages     pyspark and pyarrow, in versions that work
    SPARK_HOME   if it is set: the version of its Spark must be that of pyspark
    Java         JAVA_HOME or the PATH
    Python       the one that runs sources and sinks, which may differ from the one that runs the program
    host name    Spark must be able to resolve the name of the machine
    store        if a URL was given: whether it answers, and what it lacks for Spark
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from penstock import Capability
from penstock.errors import MissingExtra, PenstockError
from penstock.queues.blocking import connect
from penstock.queues.options import parse
from penstock.spark.java import HINT, OLDEST, packaged_home
from penstock.spark.java import INSTALL as INSTALL_JAVA
from penstock.spark.settings import check_use

PROBE_S_MAX = 60.0  # for a Python or a Java to start, on a busy machine
# Package -> the versions that work, from the first one to before the second.
VERSIONS: dict[str, tuple[tuple[int, ...], tuple[int, ...] | None]] = {
    "pyspark": ((4, 2), (5,)),
    "pyarrow": ((18,), None),
}
INSTALL = "Install it with: pip install 'penstock[spark,jre]'"
# What a store may lack -> what that means for Spark.
LACKING = {
    Capability.CLAIM: "no stream can read from it, except from nodes of the original Disque",
    Capability.UNIQUE: "a batch that is written again adds its jobs again",
}
# Run by the Python that Spark would use. It must work in any version.
_PROBE = """
import json, sys
found = {"python": "%d.%d" % sys.version_info[:2]}
for name in ("penstock", "pyarrow"):
    try:
        __import__(name)
        try:
            from importlib.metadata import version
            found[name] = version(name)
        except Exception:
            found[name] = "unknown"
    except Exception as problem:
        found[name + " problem"] = "%s: %s" % (type(problem).__name__, problem)
print(json.dumps(found))
"""


class Diagnosis(NamedTuple):
    """The result of one check."""

    is_ok: bool
    text: str


def findings(url: str | None = None) -> Iterator[Diagnosis]:
    """Yield the result of each check; with a URL, also of the store."""
    yield from _packages()
    yield from _spark_home()
    yield _java()
    yield from _python()
    yield from _host_name()
    if url is not None:
        yield from _store(url)


def _packages() -> Iterator[Diagnosis]:
    for name, (first, end) in VERSIONS.items():
        try:
            import_module(name)
            found = version("pyspark-client") if name == "pyspark" and not _is_installed(name) else version(name)
        except ImportError as problem:
            yield Diagnosis(False, f"{name} can't be imported: {problem}. {INSTALL}")
            continue
        numbers = tuple(map(int, re.findall(r"\d+", found)[:2]))
        if numbers < first or (end is not None and numbers >= end):
            wanted = f"{_dotted(first)} or newer" + ("" if end is None else f", below {_dotted(end)}")
            yield Diagnosis(False, f"{name} must be {wanted}, got {found}. {INSTALL}")
        else:
            yield Diagnosis(True, f"{name} {found}")


def _dotted(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))


def _is_installed(name: str) -> bool:
    try:
        version(name)
    except ImportError:
        return False
    return True


def _spark_home() -> Iterator[Diagnosis]:
    """Spark's Java part is taken from SPARK_HOME if it is set, and must fit its Python part."""
    home = os.environ.get("SPARK_HOME")
    if not home or not _is_installed("pyspark"):
        return
    jars = [jar.stem for jar in Path(home, "jars").glob("spark-core_*.jar")]
    mine = version("pyspark")
    if not jars:
        yield Diagnosis(
            False, f"SPARK_HOME must have the jars of Spark, got {home}: unset it, and pyspark uses its own"
        )
    elif not jars[0].endswith(f"-{mine}"):
        yield Diagnosis(False, f"SPARK_HOME must have the version of pyspark, {mine}, got {jars[0]} in {home}")
    else:
        yield Diagnosis(True, f"SPARK_HOME={home}")


def _java() -> Diagnosis:
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if java is None:
        try:
            packaged = packaged_home()
        except MissingExtra:
            return Diagnosis(False, HINT)
        text = (
            "Java is installed only as a package, which penstock spark and local_session() find. For a session of your "
        )
        return Diagnosis(False, f"{text}own, set JAVA_HOME={packaged}")
    where = f"JAVA_HOME={home}" if home else java
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, check=False, timeout=PROBE_S_MAX)
    except (OSError, subprocess.TimeoutExpired) as problem:
        return Diagnosis(False, f"{where} has no Java that can be started ({problem}): correct it, or unset JAVA_HOME")
    said = (done.stderr or done.stdout).strip().partition("\n")[0]
    release = re.search(r'version "(?:1\.)?(\d+)', said)
    if done.returncode or release is None:
        return Diagnosis(False, f"{where}: java -version must print a version, got {said!r}")
    if int(release[1]) < OLDEST:
        return Diagnosis(False, f"{where}: Java must be {OLDEST} or newer, got {release[1]}. {INSTALL_JAVA}")
    return Diagnosis(True, f"Java {release[1]} ({where})")


def _python() -> Iterator[Diagnosis]:
    """Check the Python that runs sources and sinks, on the driver and on executors: the first of these variables."""
    names = ("PYSPARK_DRIVER_PYTHON", "PYSPARK_PYTHON")
    name, command = next(((name, os.environ[name]) for name in names if os.environ.get(name)), ("PATH", "python3"))
    where = f"{name}={command}" if name != "PATH" else f"python3 on the PATH ({shutil.which(command)})"
    remedy = f"Set PYSPARK_PYTHON={sys.executable}"
    remedy += ", and unset PYSPARK_DRIVER_PYTHON" if name == names[0] else ""
    remedy += ", or activate this environment" if name == "PATH" else ""
    begin = f"Spark runs sources and sinks with {where}, which"
    probe = [command, "-c", _PROBE]
    try:
        done = subprocess.run(
            probe, capture_output=True, text=True, check=True, timeout=PROBE_S_MAX, stdin=subprocess.DEVNULL
        )
        found = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as problem:
        yield Diagnosis(False, f"{begin} can't be started ({type(problem).__name__}). {remedy}")
        return
    mine = {"python": _dotted(sys.version_info[:2]), "penstock": version("penstock")}
    for package in ("penstock", "pyarrow"):
        if package not in found:
            text = (
                f"{begin} can't import {package} ({found[f'{package} problem']}): it would not find the format penstock"
            )
            yield Diagnosis(False, f"{text} (DATA_SOURCE_NOT_FOUND). {remedy}")
            return
    for name in ("python", "penstock"):
        if found[name] != mine[name]:
            yield Diagnosis(False, f"{begin} must have {name} {mine[name]}, as here, got {found[name]}. {remedy}")
            return
    yield Diagnosis(True, f"Python {found['python']} with penstock {found['penstock']} ({where})")


def _host_name() -> Iterator[Diagnosis]:
    if os.environ.get("SPARK_LOCAL_IP"):
        return
    name = socket.gethostname()
    try:
        socket.gethostbyname(name)
    except OSError as problem:
        yield Diagnosis(
            False, f"Spark can't resolve the name of this machine, {name} ({problem}). Set SPARK_LOCAL_IP=127.0.0.1"
        )


def _store(url: str) -> Iterator[Diagnosis]:
    try:
        check_use({"url": url}, "read")
        path = connect(url).place.partition(":")[2]
        if parse(url, {})[0].scheme == "sqlite" and not Path(path).exists():  # opening it would create it
            yield Diagnosis(True, f"{url}: the file doesn't exist yet; the first push creates it")
            return
        with connect(url) as store:
            lacks = [f"no {what} ({LACKING[what]})" for what in LACKING if what not in store.capabilities]
            yield Diagnosis(True, f"{store.url} answers" + (": it has " + ", ".join(lacks) if lacks else ""))
    except PenstockError as problem:
        yield Diagnosis(False, str(problem))
