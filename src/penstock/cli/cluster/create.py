"""`penstock cluster create`, `start` and `stop`: a cluster on this machine, to try one."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from penstock.cli.cluster import local, table
from penstock.cli.cluster.access import Access, at_each, execute
from penstock.cli.cluster.local import LocalNode
from penstock.cli.cluster.table import TableColumn
from penstock.cli.cluster.view import FINE, SHORT_ID, Report, ask, parse_info
from penstock.cli.output import EventPrinter
from penstock.client.addresses import Address
from penstock.client.connection import DEFAULT_PORT
from penstock.errors import CallerError, OperatorError, PeerError

ACCESS = Access()  # they listen on the loopback address only, and need no password
POLL_SECONDS = 0.1
# Starting takes a fraction of a second; on a busy machine, or with a journal of gigabytes, far more.
START_SECONDS = 120.0
MEET_SECONDS = 60.0
MEET_AGAIN_SECONDS = 6.0  # longer than the node timeout of these nodes, after which a handshake ends
STOP_SECONDS = 60.0  # the journal must be written to disk
ABANDON_SECONDS = 5.0  # a process that goes to the background writes its id within milliseconds


class Running(NamedTuple):
    """A node that has answered."""

    node: LocalNode
    pid: int
    id: str


COLUMNS: tuple[TableColumn[Running], ...] = (
    TableColumn("NAME", False, lambda one: one.node.name),
    TableColumn("ADDRESS", False, lambda one: str(one.node.address)),
    TableColumn("NODE", False, lambda one: one.id[:SHORT_ID]),
    TableColumn("PROCESS", True, lambda one: str(one.pid)),
    TableColumn("DIRECTORY", False, lambda one: str(one.node.directory)),
)


def create(
    directory: Path, count: int, base_port: int, replace: bool, printer: EventPrinter, events: Path | None = None
) -> int:
    """Create nodes, start them, and make them meet."""
    if not 1 <= count <= local.NODES_MAX:
        raise CallerError(f"The number of nodes must be 1 to {local.NODES_MAX}, got {count}.")
    if not 1 <= base_port <= local.ephemeral_start() - local.BUS_OFFSET - count:
        most = local.ephemeral_start() - local.BUS_OFFSET - count
        raise CallerError(f"--base-port must be 1 to {most}, got {base_port}.")
    if replace:
        _replace(directory, printer)
    nodes = local.prepare(directory, count, base_port, events)
    running = _start(nodes)
    try:
        _introduce(nodes)
    except BaseException:
        _stop(nodes, None)
        raise
    _show(running, printer)
    return _advise(nodes, directory, printer, f"{table.nodes(count)} running; all of them see each other.")


def _replace(directory: Path, printer: EventPrinter) -> None:
    try:
        nodes = local.load(directory)
    except CallerError:
        return  # there is no cluster to replace
    if not _stop(nodes, None):
        stopping = f"penstock cluster stop{local.option(directory)}"
        raise OperatorError(f"The old cluster does not stop, so nothing was deleted. `{stopping}` says why.")
    local.delete(directory)
    printer.event("deleted", f"The cluster that was in {directory} is deleted.", directory=str(directory))


def start(directory: Path, printer: EventPrinter) -> int:
    """Start the nodes that were created, and wait until they see each other again."""
    nodes = local.load(directory)
    idle = [node for node in nodes if node.pid() is None]
    _start(idle)
    running = [_running(node) for node in nodes]
    _reunite(nodes)
    _show(running, printer)
    return _advise(nodes, directory, printer, f"{table.nodes(len(idle))} started.")


def stop(directory: Path, printer: EventPrinter) -> int:
    """Stop the nodes that were created."""
    return 0 if _stop(local.load(directory), printer) else 1


def _start(nodes: Sequence[LocalNode]) -> list[Running]:
    """Start nodes and wait until all of them answer. If one doesn't, those that were started are stopped again."""
    for node in nodes:
        for port in (node.port, node.port + local.BUS_OFFSET):
            if not local.is_free(port):
                raise OperatorError(f"{node.name} needs port {port}, but another program listens there: stop it.")
        node.clear()
    launched = [(node, node.launch()) for node in nodes]
    try:
        for node, process in launched:
            _wait_for_launch(node, process)
        return [_wait_for(node) for node in nodes]
    except BaseException:
        for node, process in launched:
            _abandon(node, process)
        raise


def _wait_for_launch(node: LocalNode, process: subprocess.Popen[bytes]) -> None:
    """Wait until a node is ready and in the background."""
    try:
        said, _ = process.communicate(timeout=START_SECONDS)
    except subprocess.TimeoutExpired:
        raise OperatorError(f"{node.name} is not ready after {START_SECONDS:.0f} s. See {node.log}.") from None
    if process.returncode:
        why = said.decode("utf-8", "replace").strip()
        if str(node.log) in why:
            why = f"the end of {node.log}:\n{node.last_words()}"
        raise OperatorError(f"{node.name} did not start: {why}")


def _abandon(node: LocalNode, process: subprocess.Popen[bytes]) -> None:
    """Stop a node that may still be on its way to the background."""
    if process.poll() is None:
        process.kill()
        process.wait()
    _comes_true(lambda: node.written_pid() is not None, ABANDON_SECONDS)
    pid = node.written_pid()
    if pid is not None and local.is_server(pid, node.config):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
        _comes_true(lambda: not local.is_alive(pid), STOP_SECONDS)


def _wait_for(node: LocalNode) -> Running:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        pid = node.written_pid()
        if pid is not None:
            if not local.is_alive(pid):
                raise OperatorError(f"{node.name} has exited. The end of {node.log}:\n{node.last_words()}")
            try:
                running = _running(node)
            except PeerError:
                pass  # not yet, or it is loading
            else:
                if running.pid == pid:
                    return running
        time.sleep(POLL_SECONDS)
    raise OperatorError(f"{node.name} does not answer after {START_SECONDS:.0f} s. See {node.log}.")


def _running(node: LocalNode) -> Running:
    link = ACCESS.open(node.address)
    try:
        facts = parse_info(execute(link, "INFO", "server").decode("utf-8", "replace"))
        return Running(node, int(facts["process_id"]), execute(link, "CLUSTER", "MYID").decode())
    finally:
        link.close()


def _reports(nodes: Sequence[LocalNode]) -> dict[Address, Report]:
    answers = at_each(lambda address: ask(ACCESS, address), [node.address for node in nodes])
    return {address: answer for address, answer in answers.items() if isinstance(answer, Report)}


def _introduce(nodes: Sequence[LocalNode]) -> None:
    """Make the first node meet all others, which then learn of each other by gossip."""
    met_at = 0.0

    def all_see_all() -> bool:
        nonlocal met_at
        reports = _reports(nodes)
        ids = {report.id for report in reports.values()}
        if len(ids) == len(nodes) and all(_sees(report, ids) for report in reports.values()):
            return True
        if time.monotonic() - met_at > MEET_AGAIN_SECONDS:
            met_at = time.monotonic()
            for node in nodes[1:]:
                ACCESS.run(nodes[0].address, "CLUSTER", "MEET", local.HOST, node.port)
        return False

    if not _comes_true(all_see_all, MEET_SECONDS):
        raise OperatorError(
            f"The nodes run, but after {MEET_SECONDS:.0f} s they don't all see each other, so they were stopped. "
            f"Their logs, such as {nodes[0].log}, may say why."
        )


def _sees(report: Report, ids: set[str]) -> bool:
    """Whether a node is linked to all of these, and uses them for copies."""
    fine = {line.id for line in report.lines.values() if line.opinion == FINE}
    return ids <= fine | {report.id} and int(report.cluster.get("reachable_nodes", 0)) >= len(ids) - 1


def _reunite(nodes: Sequence[LocalNode]) -> None:
    """Wait until nodes see those that they know: a node that was removed knows none."""

    def all_are_back() -> bool:
        reports = _reports(nodes)
        ids = {report.id for report in reports.values()}
        return len(ids) == len(nodes) and all(
            line.opinion == FINE for report in reports.values() for line in report.others if line.id in ids
        )

    if not _comes_true(all_are_back, MEET_SECONDS):
        raise OperatorError("The nodes run, but don't all see each other: `penstock cluster status` says more.")


def _comes_true(what: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not what():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True


def _ends(node: LocalNode) -> bool:
    return _comes_true(lambda: not node.is_running(), STOP_SECONDS)


def _show(running: Sequence[Running], printer: EventPrinter) -> None:
    for one in running:
        facts = {"name": one.node.name, "address": str(one.node.address), "id": one.id, "pid": one.pid}
        printer.event("node", "", **facts, directory=str(one.node.directory))
    if not printer.is_json:
        print(table.plain(COLUMNS, running))


def _advise(nodes: Sequence[LocalNode], directory: Path, printer: EventPrinter, sentence: str) -> int:
    port = nodes[0].port
    option = "" if port == DEFAULT_PORT else f" -p {port}"
    address = "" if port == DEFAULT_PORT else f" {nodes[0].address}"
    dir_option = local.option(directory)
    tips = (
        (f"penstock cli{option} ADDJOB mail hello 0", "add a job"),
        (f"penstock cluster status{address}", "show their state"),
        (f"penstock cluster stop{dir_option}", "stop them; `start` brings them back with their jobs"),
    )
    width = max(len(command) for command, _ in tips)
    lines = [f"  {command:<{width}}  # {purpose}" for command, purpose in tips]
    printer.event("ready", "\n".join(["", sentence, "", "Next:", *lines]), nodes=len(nodes))
    return 0


def _stop(nodes: Sequence[LocalNode], printer: EventPrinter | None) -> bool:
    """Stop nodes and wait for them; returns False if one still runs. Without a printer, silently."""
    told: list[LocalNode] = []
    are_gone = True
    for node in nodes:
        try:
            if node.stop():
                told.append(node)
            elif printer:
                printer.event("idle", f"{node.name} was not running.", name=node.name)
        except OperatorError as error:
            are_gone = False
            if printer:
                printer.warning(str(error))
    for node in told:
        if _ends(node):
            if printer:
                printer.event("stopped", f"{node.name} stopped.", name=node.name)
            continue
        are_gone = False
        if printer:
            printer.warning(f"{node.name} has not stopped after {STOP_SECONDS:.0f} s: see {node.log}.")
    return are_gone
