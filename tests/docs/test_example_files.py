"""The programs in `examples/` run, and do what they say.

Those for Spark run in `tests/spark`, the webhook dispatcher in `test_webhooks.py`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import penstock.blocking
from penstock.queues.dead_letter import ERROR
from tests.docs.examples import ROOT
from tests.processes import NodeProcess

pytestmark = pytest.mark.system

EXAMPLES = ROOT / "examples"
HERE = {"broker_lease.py", "fsq_letters.py", "mongo_layouts.py", "outbox.py"}
RUN_S = 60
SPARK_S = 600  # Java and five processes of Python start, on a machine that may be busy


def run(name: str, *words: str, within: Path) -> list[str]:
    """The lines that an example prints."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *words],
        cwd=within,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_every_example_is_run() -> None:
    elsewhere = (ROOT / "tests" / "spark" / "test_session.py").read_text("utf-8")
    for path in sorted(EXAMPLES.glob("*.py")):
        assert path.name in HERE or path.stem in elsewhere, f"no test runs {path.name}"


@pytest.mark.timeout(SPARK_S)
def test_orders_go_through_a_pipeline_of_five_links_one_of_them_on_spark(tmp_path: Path) -> None:
    pytest.importorskip("pyspark", reason="Spark is not installed: pip install 'penstock[spark]'")
    assert run("pipeline/add_orders.py", "sqlite:///orders.db", "40", within=tmp_path) == ["40 orders"]
    recipe = str(EXAMPLES / "pipeline" / "orders.toml")
    for command, *options in (["check"], ["run", "--until-empty", "--master", "local[2]"]):
        done = subprocess.run(
            [sys.executable, "-m", "penstock", "pipeline", command, recipe, *options],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
            capture_output=True,
            text=True,
            timeout=SPARK_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    # Of 40 orders 8 are of nothing, and 8 of the others of stones; melons for 40 or more are express from two on.
    assert sorted(done.stdout.splitlines()) == sorted(f"sent {count} melon" for count in (2, 3, 4) * 2)
    with penstock.blocking.connect(f"sqlite:///{tmp_path}/orders.db") as store:
        assert {job.headers[ERROR] for job in store.dead_letters().jobs()} == {"there is no stone"}
        parcels = [job.payload for job in store.queue("parcels").jobs()]
        assert len(parcels) == 40 - 8 - 8 - 6
        assert all(parcel["packed"] and parcel["price"] < 50 for parcel in parcels)


def test_letters_are_sent_from_a_directory(tmp_path: Path) -> None:
    printed = run("fsq_letters.py", str(tmp_path / "spool"), within=tmp_path)
    later = "later: the server of bob@example.down is down"
    assert printed == [
        "sent to ann@example.com - Dear ann, ...",
        later,
        "failed: 'nobody' is not an address",
        later,
        later,
        "given up: bob@example.down",
    ]
    places = {
        place: len(list((tmp_path / "spool" / "letters" / place).iterdir())) for place in ("queue", "done", "fail")
    }
    assert places == {"queue": 0, "done": 1, "fail": 2}


def test_an_order_and_its_job_are_one_transaction(tmp_path: Path) -> None:
    assert run("outbox.py", "shop.db", within=tmp_path) == [
        "refused: 0 of pear can't be shipped",
        "shipping order 1",
        "1 done",
    ]


def test_each_layout_of_mongodb_does_what_it_is_for(mongo_database: str, tmp_path: Path) -> None:
    printed = run("mongo_layouts.py", mongo_database.partition("://")[2], within=tmp_path)
    assert printed == [
        "popped {'to': 'ann'}",
        "tries 1 {'push': 2, 'pop': 1, 'reserve': 2, 'ack': 1, 'nack': 1}",
        "done ['first'] waiting 1",
        "billing {'order': 7}",
        "shipping {'order': 7}",
        "at the same time [('ann', 1), ('tom', 1)]",
        "then [('ann', 2), ('tom', 2)]",
        "acked 100 left 900",
        "moved [{'width': 400}]",
    ]


def test_jobs_of_a_broker_are_kept_and_given_back(tmp_path: Path) -> None:
    node = NodeProcess(tmp_path).start()
    try:
        printed = run("broker_lease.py", f"127.0.0.1:{node.port}", within=tmp_path)
    finally:
        node.kill()
    assert printed == [
        "resizing cat.png after 0 failures",
        "OK",
        "resizing broken.png after 0 failures",
        "no picture",
        "OK",
        "resizing broken.png after 1 failures",
        "OK",
    ]
