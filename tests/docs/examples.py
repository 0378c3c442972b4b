r"""Runs the examples of a page of the documentation, as a reader would, against real nodes.

All examples of a page run in its order, in one fresh directory. What a fenced block means:

    console   `$ ` begins a command for the shell; the lines below it are what it prints
    python    a program; a `text` block right below it is what it prints, and `# name.py` in its first line its name
    conf      a configuration file that a node must accept; `# name.conf` in its first line saves it under that name
    toml      a file; `# name.toml` in its first line saves it under that name
    others    only to be read: `sh` is for what needs another machine (installing), `text` for pictures and syntax

`penstock server` runs in a terminal of its own: its command is over once it has printed what stands below it, and the
node goes on. The line `^C` stops it, and what follows is what it prints then. On a page that never starts one, a node
with default settings runs from the first example on.

What is printed differs from run to run, so in the expected lines

    ...                        stands for any text, and as a whole line for any number of lines
    ids, tokens, process ids   (a job's id, a node's id or in a table its first 8 characters, a number of 16 digits or
                               more) stand for those of this run: the same text always for the same value, in
                               commands too
    7711, 7712, ... 7799       stand for free ports; in a row on pages that make a cluster on this machine
    two blanks or more         stand for as many as a table needs

What `penstock cluster create` has started is stopped at the end of the page.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from penstock.broker.config import load
from penstock.cli.cluster import local as local_nodes
from penstock.errors import PenstockError
from penstock.spark.java import ensure_java
from tests.processes import free_port, need_program, wait_until

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
COMMAND_SECONDS_MAX = 240.0  # on a machine that is busy, some start several nodes, or Spark
PRINT_SECONDS_MAX = 30.0

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
VARYING = re.compile(
    r"D-[0-9a-f]{8}-[A-Za-z0-9+/]{24}-[0-9a-f]{4}|\b[0-9a-f]{8}-[0-9a-f]{4}-5[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}\b|"
    r"\b[0-9a-f]{40}\b|\b[0-9]{16,20}\b|\b[0-9a-f]{8}(?=  |$)"
)
READY = "ready to accept connections"
PORT = re.compile(r"\b77[0-9]{2}\b")
PORTS_IN_A_ROW = 12  # more than any page names
MAKES_CLUSTER = "penstock cluster create"
SERVER = re.compile(r"penstock server(?!.*--(?:print-config|help))")
# Programs that a page may use and a machine may lack.
OTHERS = ("redis-cli", "openssl", "node")


@dataclass
class Block:
    """A fenced block, and the line of the page it begins at."""

    language: str
    text: str
    line: int
    follows: bool = False  # nothing but blank lines between it and the one before

    def name(self) -> str:
        """The file name in the first line's comment, if there is one."""
        found = re.match(r"# ([\w-]+\.(?:py|conf|toml))\n", self.text)
        return found[1] if found else ""


def blocks_of(text: str) -> list[Block]:
    blocks = []
    end = 0
    for match in FENCE.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        blocks.append(Block(match[1], match[2], line, follows=not text[end : match.start()].strip()))
        end = match.end()
    return blocks


@dataclass
class Step:
    """A command of a console block, and what it should print."""

    command: str
    expected: list[str] = field(default_factory=list)


def steps_of(text: str) -> list[Step]:
    steps: list[Step] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            steps.append(Step(line[2:]))
        else:
            steps[-1].expected.append(line)
    return steps


class Values:
    """What the ids of a page stand for in this run, and its ports."""

    def __init__(self, in_a_row: bool = False) -> None:
        self.by_text: dict[str, str] = {}
        self.ports: dict[str, str] = {}
        if in_a_row:
            first = free_port(PORTS_IN_A_ROW)
            self.ports = {str(7711 + number): str(first + number) for number in range(PORTS_IN_A_ROW)}

    def port(self, text: str) -> str:
        if text not in self.ports:
            self.ports[text] = str(free_port())
        return self.ports[text]

    def fill(self, command: str) -> str:
        """A command of the page as it must be typed in this run."""
        command = VARYING.sub(lambda found: self.by_text.get(found[0], found[0]), command)
        return PORT.sub(lambda found: self.port(found[0]), command)

    def fit(self, expected: list[str], printed: list[str]) -> bool:
        """Whether the printed lines are as expected; if so, remembers what ids stand for."""
        known = dict(self.by_text)
        if not self._fit(expected, printed, known):
            return False
        self.by_text = known
        return True

    def _fit(self, expected: list[str], printed: list[str], known: dict[str, str]) -> bool:
        if not expected:
            return not printed
        if expected[0].strip() == "...":
            for skipped in range(len(printed) + 1):
                attempt = dict(known)
                if self._fit(expected[1:], printed[skipped:], attempt):
                    known.update(attempt)
                    return True
            return False
        return (
            bool(printed)
            and self._fit_line(expected[0], printed[0], known)
            and self._fit(expected[1:], printed[1:], known)
        )

    def _fit_line(self, expected: str, printed: str, known: dict[str, str]) -> bool:
        found = re.fullmatch(self._pattern(expected, known), printed.rstrip())
        if found is None:
            return False
        texts = VARYING.findall(expected)
        known.update({text: found[f"v{at}"] for at, text in enumerate(texts) if text not in known})
        return True

    def _pattern(self, expected: str, known: dict[str, str]) -> str:
        parts = []
        end = 0
        seen: dict[str, int] = {}
        for at, varying in enumerate(VARYING.finditer(expected)):
            text = varying[0]
            parts.append(self._plain(expected[end : varying.start()]))
            end = varying.end()
            if text in known:
                parts.append(f"(?P<v{at}>{re.escape(known[text])})")
            elif text in seen:
                parts.append(f"(?P<v{at}>(?P=v{seen[text]}))")
            else:
                parts.append(f"(?P<v{at}>{VARYING.pattern})")
                seen[text] = at
        return "".join([*parts, self._plain(expected[end:].rstrip())])

    def _plain(self, text: str) -> str:
        """A pattern for text without ids. A port may be meant, or only be spoken of."""
        parts = [".*".join(_words(part) for part in piece.split("...")) for piece in PORT.split(text)]
        ports = [f"(?:{port}|{self.port(port)})" for port in PORT.findall(text)]
        return parts[0] + "".join(port + part for port, part in zip(ports, parts[1:], strict=True))


def _words(text: str) -> str:
    """A pattern for text in which two blanks or more are the gap between columns."""
    return " {2,}".join(re.escape(part) for part in re.split(" {2,}", text))


class Reader:
    """Someone who goes through a page and tries everything, with the tree's source or with an installed package."""

    def __init__(self, page: Path, directory: Path, installed: Path | None = None) -> None:
        self.python = str(installed or sys.executable)
        self.source = "" if installed else os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
        self.text = page.read_text("utf-8")
        self.name = str(page.relative_to(ROOT))
        self.directory = directory / "page"
        self.directory.mkdir()
        commands = [
            step.command
            for block in blocks_of(self.text)
            if block.language == "console"
            for step in steps_of(block.text)
        ]
        makes_cluster = any(MAKES_CLUSTER in command for command in commands)
        self.values = Values(in_a_row=makes_cluster)
        self.servers: list[tuple[subprocess.Popen[bytes], Path]] = []
        self.starts_nodes = makes_cluster or any(SERVER.match(command) for command in commands)
        if "SparkSession" in self.text:  # which needs JAVA_HOME where Java is only there as a package
            ensure_java()
        self.environment = self._environment(directory / "bin")

    def _environment(self, programs: Path) -> dict[str, str]:
        """One in which `penstock cli` and `penstock server` mean port 7711 as the page does."""
        programs.mkdir()
        port = self.values.port("7711")
        real = f'exec "{self.python}" -m penstock'
        shims = {
            "penstock": f'case "$1" in\n cli) shift; {real} cli -p {port} "$@" ;;\n'
            f' server) case "$*" in *--port*|*--help*|*--print-config*) {real} "$@" ;;\n'
            f'   *) {real} "$@" --port {port} ;; esac ;;\n'
            f' cluster) case "$2 $#" in "create "*) {real} "$@" --base-port {port} ;;\n'
            f'   "status 2") {real} "$@" 127.0.0.1:{port} ;; *) {real} "$@" ;; esac ;;\n *) {real} "$@" ;;\nesac\n',
            "python": f'exec "{self.python}" "$@"\n',
            "fsq": f'{real}.cli.fsq "$@"\n',
        }
        for name, text in shims.items():
            (programs / name).write_text(f"#!/bin/sh\n{text}")
            (programs / name).chmod(0o755)
        path = f"{programs}:{Path(self.python).parent}:{os.environ['PATH']}"
        fsq_root = str(self.directory / "queues")  # pages on directories as queues begin by making and naming it
        more = {"PATH": path, "PYTHONPATH": self.source, "COLUMNS": "80", "TERM": "dumb", "FSQ_ROOT": fsq_root}
        return {**os.environ, **more}

    def read(self) -> None:
        """Try every example, in order."""
        blocks = blocks_of(self.text)
        runs = [block for block in blocks if block.language in ("console", "python")]
        if runs and not self.starts_nodes:
            self._serve(Step("penstock server"), f"{self.name}: the default node")
        for at, block in enumerate(blocks):
            where = f"{self.name}, line {block.line}"
            if block.language == "console":
                for step in steps_of(block.text):
                    self._run(step, f"{where}: {step.command}")
            elif block.language == "python":
                below = blocks[at + 1] if at + 1 < len(blocks) else None
                self._run_program(block, below if below and below.follows and below.language == "text" else None, where)
            elif block.language == "toml" and block.name():
                (self.directory / block.name()).write_text(block.text)
            elif block.language == "conf":
                self._check_config(block, where)

    def _run(self, step: Step, where: str) -> None:
        if SERVER.match(step.command):
            self._serve(step, where)
            return
        for program in OTHERS:
            if re.match(rf"{program}\b", step.command):
                need_program(program)
        self._compare(self.values.fill(step.command), step.expected, where)

    def _compare(self, command: str, expected: list[str], where: str) -> None:
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self.directory,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=COMMAND_SECONDS_MAX,
            check=False,
        )
        self._expect(expected, done.stdout.decode("utf-8", "replace"), where)

    def _expect(self, expected: list[str], printed: str, where: str) -> None:
        lines = printed.splitlines()
        # A reply that ends with an empty line is shown without it.
        while lines and not lines[-1].strip():
            lines.pop()
        wanted = "\n".join(expected).rstrip().splitlines()
        assert self.values.fit(wanted, lines), (
            f"{where}\n--- expected\n" + "\n".join(wanted) + f"\n--- printed\n{printed}"
        )

    def _run_program(self, block: Block, output: Block | None, where: str) -> None:
        path = self.directory / (block.name() or "example.py")
        path.write_text(self.values.fill(block.text), "utf-8")
        self._compare(f'python "{path}"', output.text.splitlines() if output else [], where)

    def _check_config(self, block: Block, where: str) -> None:
        path = self.directory / (block.name() or "example.conf")
        path.write_text(self.values.fill(block.text), "utf-8")
        try:
            load(str(path), [("dir", [str(self.directory)])])
        except PenstockError as error:
            raise AssertionError(f"{where}: {error}") from None

    def _serve(self, step: Step, where: str) -> None:
        log = self.directory.parent / f"terminal{len(self.servers)}"
        end = step.expected.index("^C") if "^C" in step.expected else len(step.expected)
        before, after = step.expected[:end], step.expected[end + 1 :]
        with log.open("wb") as stream:
            process = subprocess.Popen(
                ["bash", "-c", f"exec {self.values.fill(step.command)}"],
                cwd=self.directory,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
            )
        self.servers.append((process, log))
        if not before or READY in before[-1]:
            wait_until(lambda: process.poll() is not None or READY in log.read_text(), PRINT_SECONDS_MAX)
        else:  # it says something else, so it is expected to end by itself
            process.wait(PRINT_SECONDS_MAX)
        if before:
            self._expect(before, log.read_text(), where)
        if "^C" in step.expected:
            printed = len(log.read_text())
            process.send_signal(signal.SIGINT)
            process.wait(PRINT_SECONDS_MAX)
            self._expect(after, log.read_text()[printed:], where)

    def leave(self) -> None:
        """End what is still running."""
        for path in self.directory.rglob("cluster.json"):
            for node in local_nodes.load(path.parent):
                pid = node.holder()
                if node.is_running() and pid is not None and local_nodes.is_server(pid, node.config):
                    os.kill(pid, signal.SIGKILL)
        for process, _ in self.servers:
            if process.poll() is None:
                process.kill()
                process.wait()
