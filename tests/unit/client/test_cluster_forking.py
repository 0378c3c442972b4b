"""A client after a fork: the child makes its own connection, and the parent keeps its one."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

from tests.processes import wait_until
from tests.unit.client.nodes import FakeNode

SOURCE = Path(__file__).resolve().parents[3] / "src"

# In a process of its own: this one has threads, and a fork would leave them behind in the middle of something.
PROGRAM = """
    import os, sys
    from penstock.client.blocking import ClusterClient

    client = ClusterClient(sys.argv[1])
    assert client.qlen("parent") == 1
    child = os.fork()
    if child == 0:
        for _ in range(20):
            assert client.qlen("child") == 2
        os._exit(0)
    for _ in range(20):
        assert client.qlen("parent") == 1
    assert os.waitpid(child, 0)[1] == 0
    assert client.qlen("parent") == 1
    client.close()
"""

ASYNC_PROGRAM = """
    import asyncio, os, sys
    from penstock.client import ClusterClient

    client = ClusterClient(sys.argv[1])

    async def ask(name, expected):
        for _ in range(20):
            assert await client.qlen(name) == expected

    async def parent():
        await ask("parent", 1)
        child = os.fork()
        if child == 0:
            asyncio._set_running_loop(None)
            asyncio.run(ask("child", 2))
            os._exit(0)
        await ask("parent", 1)
        assert os.waitpid(child, 0)[1] == 0
        await ask("parent", 1)
        await client.close()

    asyncio.run(parent())
"""


def check(program: str) -> None:
    def answer(request: list[bytes]) -> bytes:
        return b":1\r\n" if request[1] == b"parent" else b":2\r\n"

    with FakeNode("a", QLEN=answer) as a:
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(program), a.address],
            env={**os.environ, "PYTHONPATH": str(SOURCE)},
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert a.connections == 2
        wait_until(lambda: a.ended == 2)
        # Nobody's reply was read by the other, and nobody's requests went out on the other's connection.
        assert [words[1] for words in a.asked("QLEN")].count("child") == 20


def test_parent_and_child_have_connections_of_their_own() -> None:
    check(PROGRAM)


def test_a_child_with_an_event_loop_of_its_own_leaves_that_of_the_parent_alone() -> None:
    check(ASYNC_PROGRAM)
