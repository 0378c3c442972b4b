"""Nodes for trying out: which ports they get, which processes are ours, and what is never deleted."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.broker.config import load as load_config
from penstock.cli.cluster import create, local
from penstock.cli.cluster.local import LocalNode, choose_ports
from penstock.cli.output import EventPrinter
from penstock.errors import CallerError, OperatorError

END = 32_768


def test_ports_are_the_first_that_are_free() -> None:
    assert choose_ports(7711, 3, END, lambda port: True) == [7711, 7712, 7713]
    assert choose_ports(7711, 3, END, lambda port: port != 7712) == [7711, 7713, 7714]


def test_the_port_of_the_bus_must_be_free_as_well() -> None:
    assert choose_ports(7711, 3, END, lambda port: port != 17_711) == [7712, 7713, 7714]


def test_the_bus_stays_below_the_ports_of_outgoing_connections() -> None:
    assert choose_ports(END - 10_002, 2, END, lambda port: True) == [END - 10_002, END - 10_001]
    with pytest.raises(CallerError, match="Fewer than 3 ports are free from 22766 on"):
        choose_ports(END - 10_002, 3, END, lambda port: True)


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A directory with two nodes that have never run."""
    directory = tmp_path / "a cluster"
    local.prepare(directory, 2, 7711)
    return directory


def test_what_was_made_is_found_again(made: Path) -> None:
    nodes = local.load(made)
    assert [node.name for node in nodes] == ["node-1", "node-2"]
    assert len({node.port for node in nodes}) == 2


def test_the_configuration_is_one_that_a_node_accepts_also_with_odd_names(tmp_path: Path) -> None:
    for name in ("with blank", 'quote"d', "caf\u00e9"):
        for node in local.prepare(tmp_path / name, 1, 7711):
            config = load_config(str(node.config), [])
            assert (config.port, config.bind, config.dir) == (node.port, ("127.0.0.1",), str(node.directory))
            assert (config.pidfile, config.logfile) == (str(node.pid_file), str(node.log))


def test_a_directory_that_has_a_cluster_is_not_taken_for_another(made: Path) -> None:
    with pytest.raises(CallerError, match="--replace"):
        local.prepare(made, 2, 7711)


def test_a_directory_of_somebody_elses_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "node-2").mkdir()
    with pytest.raises(CallerError, match="without node-2, got"):
        local.prepare(tmp_path, 2, 7711)
    assert [path.name for path in tmp_path.iterdir()] == ["node-2"]


def test_only_what_was_made_is_deleted(made: Path) -> None:
    (made / "notes").write_text("mine")
    (made / "node-3").mkdir()
    local.delete(made)
    assert sorted(path.name for path in made.iterdir()) == ["node-3", "notes"]


@pytest.mark.parametrize("name", ["..", "../../elsewhere", "node-1/..", "/tmp"])
def test_a_list_that_names_something_else_deletes_nothing(made: Path, name: str) -> None:
    (made / "cluster.json").write_text(f'{{"nodes": [{{"name": "{name}", "port": 7711}}]}}')
    with pytest.raises(OperatorError, match="must name nodes such as node-1"):
        local.delete(made)
    assert (made / "node-1").exists()


def test_a_list_that_is_damaged_is_reported(made: Path) -> None:
    (made / "cluster.json").write_text("{")
    with pytest.raises(OperatorError, match="is not a file of `penstock cluster create`"):
        local.load(made)


def test_without_a_list_there_is_no_cluster(tmp_path: Path) -> None:
    with pytest.raises(CallerError, match="penstock cluster create 3 --dir"):
        local.load(tmp_path)


def test_a_place_where_nothing_can_be_made_is_reported(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match=r"Can't use .*: File name too long"):
        local.prepare(tmp_path / ("x" * 300), 1, 7711)


# Which process is ours.


class Holder:
    """A process with a node's configuration among its words, or without, whose lock is held (by us, for it)."""

    def __init__(self, node: LocalNode, *words: str) -> None:
        script = "import sys; print('ready', flush=True); sys.stdin.read()"
        self.process = subprocess.Popen(
            [sys.executable, "-c", script, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self.process.stdout is not None
        self.process.stdout.readline()  # until then the system still shows our own words as its
        node.lock.write_text(f"{self.process.pid}\n")
        node.pid_file.write_text(f"{self.process.pid}\n")
        self.lock = os.open(node.lock, os.O_RDWR)
        fcntl.flock(self.lock, fcntl.LOCK_EX)

    def end(self) -> None:
        os.close(self.lock)
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def node(made: Path) -> LocalNode:
    return local.load(made)[0]


@pytest.fixture
def holder(node: LocalNode) -> Iterator[Holder]:
    process = Holder(node, str(node.config))
    yield process
    process.end()


def test_a_node_that_never_ran_does_not_run(node: LocalNode) -> None:
    assert node.pid() is None
    assert node.stop() is False


def test_a_process_that_holds_the_lock_and_was_started_with_the_configuration_is_ours(
    node: LocalNode, holder: Holder
) -> None:
    assert node.pid() == holder.process.pid
    assert node.stop() is True
    assert holder.process.wait(30) != 0


def test_a_pid_file_that_a_crash_has_left_harms_nobody(node: LocalNode, holder: Holder) -> None:
    fcntl.flock(holder.lock, fcntl.LOCK_UN)  # so the node is gone, and its number is now that of another process
    assert node.stop() is False
    assert holder.process.poll() is None
    assert not node.pid_file.exists()


def test_a_pid_file_that_names_another_process_than_the_lock_is_not_believed(node: LocalNode, holder: Holder) -> None:
    node.pid_file.write_text(f"{os.getpid()}\n")
    with pytest.raises(OperatorError, match=f"in use by process {holder.process.pid}"):
        node.stop()
    assert holder.process.poll() is None


def test_a_process_that_was_started_for_something_else_is_not_ours(node: LocalNode) -> None:
    stranger = Holder(node, "another.conf")
    try:
        with pytest.raises(OperatorError, match="has not started"):
            node.stop()
        assert stranger.process.poll() is None
    finally:
        stranger.end()


def test_a_node_that_runs_is_not_deleted(made: Path, holder: Holder) -> None:
    with pytest.raises(OperatorError, match="still runs"):
        local.delete(made)
    assert (made / "node-1" / "node.conf").exists()


def test_a_process_that_is_gone_or_only_remains_is_not_alive() -> None:
    assert local.is_alive(os.getpid())
    with subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.read()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and nobody has collected it
        assert not local.is_alive(process.pid)
    assert not local.is_alive(process.pid)


def refuse(*_words: object) -> None:
    raise PermissionError(1, "Operation not permitted")


def test_a_process_of_another_user_is_reported(
    node: LocalNode, holder: Holder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "kill", refuse)
    assert create.stop(node.directory.parent, EventPrinter()) == 1
    assert f"process {holder.process.pid} of another user" in capsys.readouterr().err


def test_a_directory_of_another_user_is_reported(
    node: LocalNode, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Path, "unlink", lambda path, missing_ok: refuse())
    assert create.stop(node.directory.parent, EventPrinter()) == 1
    assert f"Can't use {node.directory}: Operation not permitted" in capsys.readouterr().err
