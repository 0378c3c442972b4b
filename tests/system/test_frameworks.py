"""The Django example of the how-to on PostgreSQL, and with a push at the commit; the page itself runs on SQLite."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock import blocking
from tests.docs.examples import ROOT, blocks_of
from tests.processes import need_module
from tests.servers import PostgresServer, RedisServer

pytestmark = [pytest.mark.system, pytest.mark.timeout(240)]
PAGE = ROOT / "docs" / "how-to" / "use-tasks-in-web-frameworks.md"
WITHIN = "welcome.options(connection=connection.connection).blocking.push(user.pk)"
AT_THE_COMMIT = "transaction.on_commit(lambda: welcome.blocking.push(user.pk))"


def program() -> str:
    need_module("django")
    (found,) = [block.text for block in blocks_of(PAGE.read_text("utf-8")) if block.name() == "shop.py"]
    return found


def replaced(text: str, name: str, value: object) -> str:
    """The program with another value of a name at its top."""
    lines = text.splitlines(keepends=True)
    (at,) = [number for number, line in enumerate(lines) if line.startswith(f"{name} = ")]
    return "".join([*lines[:at], f"{name} = {value!r}\n", *lines[at + 1 :]])


def run(folder: Path, *words: str) -> list[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_django_pushes_within_its_transaction_on_postgresql(
    postgres_server: PostgresServer, postgres_database: str, tmp_path: Path
) -> None:
    database = {
        "ENGINE": "django.db.backends.postgresql",
        "HOST": postgres_server.host,
        "PORT": postgres_server.port,
        "USER": postgres_database.partition("//")[2].partition("@")[0],
        "NAME": postgres_database.rpartition("/")[2],
    }
    text = replaced(replaced(program(), "DATABASE", database), "STORE", postgres_database)
    assert WITHIN in text
    (tmp_path / "shop.py").write_text(text)
    assert run(tmp_path, "shop.py", "ann", "root", "tom") == ["ann 201", "root that name is taken", "tom 201"]
    with blocking.connect(postgres_database) as store:
        assert store.queue("mail").total() == 2  # of root there is neither user nor job
    words = ("-m", "penstock", "worker", "shop:tasks", "--until-empty", "--concurrency", "1")
    assert sorted(run(tmp_path, *words)) == ["welcome, ann", "welcome, tom"]


def test_django_pushes_at_the_commit_to_another_store(redis_server: RedisServer, tmp_path: Path) -> None:
    url = redis_server.url.replace("redis:", "redis+oq:", 1)
    text = replaced(program(), "STORE", f"{url}?namespace=django-{os.getpid()}").replace(WITHIN, AT_THE_COMMIT)
    text = text.replace('queue="mail"', f'queue="mail-{os.getpid()}"')
    assert AT_THE_COMMIT in text
    assert AT_THE_COMMIT in PAGE.read_text("utf-8").replace(text, "")
    (tmp_path / "shop.py").write_text(text)
    assert run(tmp_path, "shop.py", "ann", "root", "tom") == ["ann 201", "root that name is taken", "tom 201"]
    words = ("-m", "penstock", "worker", "shop:tasks", "--until-empty", "--concurrency", "1")
    assert sorted(run(tmp_path, *words)) == ["welcome, ann", "welcome, tom"]
