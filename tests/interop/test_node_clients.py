"""disqueue-node and thunk-disque, Disque's clients for Node: small programs beside this file drive them.

A program makes one tour through the commands that its client has and prints what it saw; each test looks at one thing.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.processes import NodeProcess, lacking, need_program, wait_until

pytestmark = pytest.mark.interop

PROGRAMS = Path(__file__).parent / "node"
PACKAGES = {"disqueue": "disqueue-node", "thunk": "thunk-disque"}


def command(client: str, node: NodeProcess, scene: str, queue: str) -> list[str]:
    program = need_program("node")
    if not (PROGRAMS / "node_modules" / PACKAGES[client]).is_dir():
        lacking(f"the npm package {PACKAGES[client]}")
    return [program, str(PROGRAMS / f"{client}.js"), str(node.port), scene, queue]


@pytest.fixture(scope="module", params=list(PACKAGES))
def client(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def seen(client: str, shared_node: NodeProcess) -> dict[str, Any]:
    """What one tour with the client saw."""
    argv = command(client, shared_node, "tour", f"tour-{client}")
    done = subprocess.run(argv, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def as_rows(jobs: list[Any]) -> list[list[Any]]:
    """Jobs as the server sends them; disqueue-node makes objects of them."""
    return [list(job.values()) if isinstance(job, dict) else job for job in jobs]


def test_it_learns_the_node_from_hello(seen: dict[str, Any], shared_node: NodeProcess) -> None:
    hello = list(seen["hello"].values()) if isinstance(seen["hello"], dict) else seen["hello"]
    my_id = shared_node.call("CLUSTER", "MYID").decode()
    assert hello == [1, my_id, [my_id, "", str(shared_node.port), "1"]]


def test_an_added_job_waits(seen: dict[str, Any]) -> None:
    assert seen["lengthAdded"] == 1
    shown = seen["shown"]
    assert (shown["state"], shown["retry"], shown["ttl"], shown["body"]) == ("queued", 66, 660, "héllo")


def test_it_gets_the_job(seen: dict[str, Any], client: str) -> None:
    assert as_rows(seen["got"]) == [[f"tour-{client}", seen["id"], "héllo"]]


def test_working_answers_the_retry_time(seen: dict[str, Any]) -> None:
    assert seen["working"] == 66


def test_a_nacked_job_comes_back_counted(seen: dict[str, Any]) -> None:
    assert seen["nacked"] == 1
    ((_, job_id, _, *counters),) = as_rows(seen["gotAgain"])
    assert job_id == seen["id"]
    assert [value for value in counters if isinstance(value, int)] == [1, 0]


def test_a_job_is_put_back_and_taken_out(seen: dict[str, Any]) -> None:
    assert (seen["enqueued"], seen["dequeued"]) == (1, 1)


def test_an_acked_job_is_gone(seen: dict[str, Any]) -> None:
    assert (seen["acked"], seen["shownAcked"]) == (1, None)


def test_no_job_is_nothing(seen: dict[str, Any]) -> None:
    assert not seen["gotNothing"]


def test_jobs_are_forgotten_by_id(seen: dict[str, Any]) -> None:
    assert (seen["fastAcked"], seen["deleted"]) == (2, 1)


def test_an_error_reaches_the_program(seen: dict[str, Any]) -> None:
    assert seen["error"].startswith("NOJOB ")


def test_a_pipeline_keeps_its_order(seen: dict[str, Any]) -> None:
    assert seen["pipelined"] == [0, 1, 2]


def test_a_blocked_client_gets_what_another_adds(client: str, shared_node: NodeProcess) -> None:
    queue = f"wait-{client}"
    with subprocess.Popen(command(client, shared_node, "wait", queue), stdout=subprocess.PIPE, text=True) as waiting:
        wait_until(lambda: shared_node.info()["blocked_clients"] == "1")
        job_id = shared_node.call("ADDJOB", queue, "late", 0).decode()
        output, _ = waiting.communicate(timeout=20)
    assert as_rows(json.loads(output)["got"]) == [[queue, job_id, "late"]]
