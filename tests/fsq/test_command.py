"""The command line: flags, messages and exit codes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from penstock import fsq
from penstock.cli import fsq as command
from penstock.cli.fsq import man
from penstock.cli.fsq.table import COMMANDS, LAUNCHER
from tests.fsq import programs

ROOT = Path(__file__).resolve().parents[2]


class Done(NamedTuple):
    status: int
    out: str
    err: str


Run = Callable[..., Done]


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command within this process."""
    import signal

    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def call(*words: str) -> Done:
        monkeypatch.setenv("FSQ_CHARSET", "utf8")
        before = dict(fsq.constants._values)
        capfd.readouterr()
        try:
            status = command.run(list(words), "fsq")
        finally:
            fsq.constants._values.update(before)
            for number, handler in handlers.items():
                signal.signal(number, handler)
        said = capfd.readouterr()
        return Done(status, said.out, said.err)

    return call


def listing(root: Path, place: str) -> list[str]:
    return sorted(os.listdir(root / "mail" / place))


# The launcher.


def test_both_names_are_the_same_program(root: Path) -> None:
    by_group = subprocess.run(
        [sys.executable, "-m", "penstock", "fsq", "list", "--help"],
        env=programs.environment(),
        capture_output=True,
        check=False,
    )
    assert by_group.stdout.startswith(b"usage: penstock fsq list")
    assert by_group.returncode == 0


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_lists_all_commands_and_flags(run: Run, flag: str) -> None:
    done = run(flag)
    assert (done.status, done.err) == (0, "")
    for name in COMMANDS:
        assert re.search(rf"^  {name} ", done.out, re.MULTILINE)
    for option in LAUNCHER:
        assert option.names in done.out


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_has_help_and_refuses_an_unknown_flag(run: Run, name: str) -> None:
    done = run(name, "-h")
    assert (done.status, done.err) == (0, "")
    assert done.out.startswith(f"usage: fsq {name} [flags] {COMMANDS[name].syntax}\n")
    for option in COMMANDS[name].flags:
        assert option.names in done.out
    for flag in ("-Q", "--nonsense"):
        done = run(name, flag)
        assert (done.status, done.out) == (111, "")
        assert done.err.startswith(f"fsq {name}: invalid flag: {flag}")


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        ((), 100, "usage: fsq"),
        (("--nonsense",), 111, "fsq: invalid flag: --nonsense"),
        (("nonsense",), 111, "fsq nonsense: command not found: nonsense; (try --list)"),
        (("../x",), 111, "illegal prog argument"),
        (("-c", "nonsense", "list"), 111, "FSQ_CHARSET"),
        (("install",), 100, "usage: fsq install"),
        (("uninstall",), 100, "usage: fsq uninstall"),
        (("enqueue",), 100, "usage: fsq enqueue"),
        (("scan",), 100, "usage: fsq scan"),
        (("scan", "mail"), 100, "usage: fsq scan"),
        (("add-host", "far"), 100, "usage: fsq add-host"),
        (("rm-host", "far"), 100, "usage: fsq rm-host"),
        (("up-host", "far"), 100, "usage: fsq up-host"),
        (("down-host", "far"), 100, "usage: fsq down-host"),
        (("host-dist",), 100, "usage: fsq host-dist"),
        (("push", "a", "b", "c", "d"), 100, "usage: fsq push"),
        (("jsonrpcd",), 100, "usage: fsq jsonrpcd"),
        (("jsonrpcd", "x"), 100, "the port must be 0 to 65535"),
        (("show", "mail"), 100, "usage: fsq show"),
        (("redrive", "mail"), 100, "usage: fsq redrive"),
        (("redrive", "--all", "mail", "x"), 100, "usage: fsq redrive"),
        (("purge", "mail"), 111, "--older-than"),
        (("purge", "--older-than", "soon", "mail"), 111, "like 90s"),
        (("repair",), 100, "usage: fsq repair"),
        (("scan", "-j", "0", "mail", "true"), 111, "invalid argument for flag: --jobs"),
        (("scan", "-j", "9999", "mail", "true"), 111, "invalid argument for flag: --jobs"),
        (("scan", "-r", "x", "mail", "true"), 111, "invalid argument for flag: --max-rate"),
        (("scan", "-t", "-5", "mail", "true"), 111, "invalid argument for flag: --ttl"),
        (("scan", "absent", "true"), 111, "cannot scan absent: No such file"),
        (("scan", "-A", "absent", "mail", "true"), 111, "cannot scan mail"),
        (("enqueue", "-e", "absent"), 111, "cannot enqueue into absent: No such file"),
        (("enqueue", "-e", "-m", "9", "mail"), 111, "invalid argument for flag: -m"),
        (("enqueue", "-e", "-u", "nobody-at-all", "mail"), 111, "no user"),
        (("enqueue", "-f", "/no/such", "mail"), 111, "cannot read /no/such"),
        (("enqueue", "-e", "mail", "x" * 300), 111, "File name too long"),
        (("enqueue", "-e", "-t", "mail"), 111, "the item is in the queue"),
        (("enqueue", "-e", ".."), 111, "illegal name"),
        (("down", "absent"), 111, "absent"),
        (("down", "-m", "x", "mail"), 111, "invalid argument"),
        (("up", "absent"), 111, "absent"),
        (("install", "mail"), 111, "queue exists: mail"),
        (("install", "-m", "9", "new"), 100, "invalid argument for flag: -m"),
        (("install", "-o", "nobody-at-all", "new"), 100, "invalid argument for flag"),
        (("install", "a/b"), 111, "illegal name"),
        (("uninstall", "absent"), 111, "no such queue: absent"),
        (("rm-host", "far", "mail"), 111, "no such host: far"),
        (("up-host", "far", "mail"), 111, "far"),
        (("host-dist", "mail"), 111, "hosts of mail"),
        (("push", "http://127.0.0.1:9", "mail", "mail", "far", "x"), 111, "cannot open item"),
        (("stats", "absent"), 111, "absent"),
        (("list", "absent"), 111, "absent"),
        (("list", "-p", "nowhere", "mail"), 111, "a place must be one of"),
    ],
)
def test_mistakes_are_reported_in_a_line(
    run: Run, queue: str, words: tuple[str, ...], status: int, message: str
) -> None:
    done = run(*words)
    assert (done.status, done.out) == (status, "")
    assert message in done.err
    assert done.err.count("\n") == 1
    assert "Traceback" not in done.err


@pytest.mark.parametrize("words", [("up",), ("down",)])
def test_up_and_down_of_nothing_is_nothing(run: Run, words: tuple[str, ...]) -> None:
    assert run(*words) == Done(0, "", "")


def test_the_flags_of_the_launcher_are_settings(run: Run, root: Path) -> None:
    other = root / "other"
    other.mkdir()
    names = ["-q", "waiting", "-t", "drafts", "-d", "finished", "--fail-dir=broken", "-D", "closed", "-T", "bell"]
    assert run("-r", str(other), *names, "install", "-d", "-t", "mail") == Done(0, "", "")
    assert sorted(os.listdir(other / "mail")) == ["bell", "broken", "closed", "drafts", "finished", "waiting"]
    assert run("--root-dir", str(other), "--list").out.startswith("  install")


def test_a_command_of_the_user_is_run(run: Run, root: Path, tmp_path: Path) -> None:
    (tmp_path / "hello.py").write_text("def main(argv):\n    print(argv)\n    return 7\n")
    done = run("-e", str(tmp_path), "hello", "-x", "y")
    assert (done.status, done.out) == (7, "['fsq hello', '-x', 'y']\n")


def test_an_argument_that_is_no_text_is_refused(root: Path, queue: str) -> None:
    done = programs.run("enqueue", "-e", "mail", b"\xff")
    assert (done.returncode, done.stderr) == (111, b"fsq enqueue: cannot coerce b'\\xff'\n")
    assert listing(root, "queue") == []


# Making queues.


def test_install_takes_its_options_also_when_it_replaces(run: Run, root: Path) -> None:
    assert run("install", "-v", "mail").err == "fsq install: installing mail\n"
    fsq.senqueue("mail", "")
    assert run("install", "--ignore-exists", "mail").status == 0
    assert len(listing(root, "queue")) == 1
    done = run("install", "-f", "-d", "-t", "-m", "0700", "-a", "near", "--add-host=far", "mail")
    assert (done.status, done.err) == (0, "")
    assert listing(root, "queue") == []
    entries = ["done", "down", "fail", "hosts", "hosts-trigger-s", "queue", "tmp", "trigger-s"]
    assert sorted(os.listdir(root / "mail")) == entries
    assert fsq.hosts("mail") == ("far", "near")
    assert (root / "mail/queue").stat().st_mode & 0o7777 == 0o700
    assert run("uninstall", "mail").status == 0
    assert run("uninstall", "-f", "mail").status == 0
    assert os.listdir(root) == []


def test_install_stops_at_the_first_error(run: Run, root: Path, queue: str) -> None:
    assert run("install", "one", "mail", "two").status == 111
    assert sorted(os.listdir(root)) == ["mail", "one"]


def test_hosts_are_added_and_removed(run: Run, root: Path, queue: str) -> None:
    assert run("add-host", "far", "mail").status == 0
    assert run("add-host", "far", "mail").status == 111
    assert run("add-host", "-i", "far", "mail").status == 0
    (root / "mail/hosts/far/queue/x").touch()
    assert run("add-host", "--force", "far", "mail").status == 0
    assert os.listdir(root / "mail/hosts") == ["far"]
    assert os.listdir(root / "mail/hosts/far/queue") == []
    assert run("down-host", "far", "mail").status == 0
    assert fsq.host_is_down("mail", "far")
    assert run("up-host", "far", "mail").status == 0
    assert not fsq.host_is_down("mail", "far")
    assert run("rm-host", "far", "mail").status == 0
    assert run("rm-host", "-f", "far", "mail").status == 0
    assert os.listdir(root / "mail/hosts") == []


def test_queues_go_down_and_up(run: Run, root: Path, queue: str) -> None:
    assert run("down", "-v", "-m", "0600", "mail") == Done(0, "", "fsq down: taking mail down\n")
    assert fsq.is_down("mail")
    assert run("up", "--verbose", "-d", "ignored", "mail") == Done(0, "", "fsq up: bringing mail up\n")
    assert not fsq.is_down("mail")


# Items.


def test_items_are_enqueued_from_all_sources(run: Run, root: Path, queue: str, tmp_path: Path) -> None:
    done = programs.run("enqueue", "--id", "mail", "-x", "é", stdin=b"from a pipe")
    name = done.stdout.decode().strip()
    assert (done.returncode, done.stderr) == (0, b"")
    assert name.endswith("_0_-x_é")
    assert (root / "mail/queue" / name).read_bytes() == b"from a pipe"
    (tmp_path / "letter").write_text("from a file")
    for words in (["-e", "-f", str(tmp_path / "letter")], ["--file", str(tmp_path / "letter"), "-e"]):
        done_here = run("enqueue", *words, "--id", "mail")
        assert (root / "mail/queue" / done_here.out.strip()).read_bytes() == b"from a file"
    assert run("enqueue", "-e", "-v", "mail", "a").err.startswith("fsq enqueue: enqueued _")


def test_items_are_run_with_their_arguments_and_variables(run: Run, root: Path, queue: str) -> None:
    name = fsq.senqueue(queue, "data", "-a", "é b")
    done = run("scan", "mail", "sh", "-c", 'cat; echo; echo "$0|$@|$FSQ_ITEM_ID|$FSQ_ITEM_TRIES"', "own")
    assert done == Done(0, f"data\nown|-a é b|{name}|0\n", "")
    assert listing(root, "done") == [name]


def test_the_manual_of_the_standard_lists_every_variable_of_a_worker(run: Run, root: Path, queue: str) -> None:
    text = man.man_pages()["man7/fsq.7"].partition(".SH ENVIRONMENT OF WORKERS\n")[2].partition("\n.SH ")[0]
    listed = {line.removeprefix(".B ") for line in text.splitlines() if line.startswith(".B ")}
    fsq.install_host(queue, "web1")
    name = fsq.senqueue(queue, "")
    (root / "mail/hosts/web1/queue" / name).touch()
    names = "env | sed -n 's/^\\(FSQ_ITEM_[A-Z_]*\\)=.*/\\1/p'"
    own, of_host = (set(run("scan", *words, "mail", "sh", "-c", names).out.split()) for words in ([], ["-a"]))
    assert (own - {*fsq.constants.SETTINGS}, of_host - own) == (listed - {"FSQ_ITEM_HOST"}, {"FSQ_ITEM_HOST"})


@pytest.mark.parametrize(
    ("code", "place", "message"),
    [
        (0, "done", ""),
        (100, "fail", "failed permanently"),
        (7, "fail", "failed permanently"),
        (111, "queue", "failed temporarily"),
    ],
)
def test_the_exit_code_decides(run: Run, root: Path, queue: str, code: int, place: str, message: str) -> None:
    name = fsq.senqueue(queue, "")
    done = run("scan", "-m", "2", "mail", "sh", "-c", f"exit {code}")
    assert done.status == 0, "a failed item isn't a failed scan"
    assert done.err == (f"{name}: {message}\n" if message else "")
    assert len(listing(root, place)) == 1


def test_the_meaning_of_exit_codes_can_be_changed(run: Run, root: Path, queue: str) -> None:
    fsq.senqueue(queue, "")
    assert run("scan", "-S", "7", "-T", "8", "-F", "9", "mail", "sh", "-c", "exit 7").status == 7
    assert len(listing(root, "done")) == 1


def test_used_up_tries_and_old_age_are_reported(run: Run, root: Path, queue: str) -> None:
    name = fsq.senqueue(queue, "")
    assert run("scan", "mail", "sh", "-c", "exit 111").err == (
        f"max tries exceeded: 1 (1): for item {name}; failed permanently\n"
    )
    old = "_20200101000000_0_1_web_0"
    (root / "mail/queue" / old).touch()
    done = run("scan", "-t", "60", "mail", "true")
    assert (done.status, done.err) == (0, f"TTL expired: 60: for item {old}; failed permanently\n")
    assert listing(root, "fail") == sorted([name, old])


def test_a_program_that_can_not_be_run_is_a_failure_for_now(run: Run, root: Path, queue: str) -> None:
    name = fsq.senqueue(queue, "", "%00")
    (root / "mail/queue" / "_20200101000000_0_1_web_0_%00").touch()
    done = run("scan", "-m", "2", "mail", "/no/such/program")
    assert done.status == 0
    assert f"{name}: cannot run /no/such/program" in done.err
    assert len([each for each in listing(root, "queue") if "_1_" in each]) == 2


def test_items_of_all_languages_are_run(run: Run, root: Path, queue: str) -> None:
    for word in ("日本", "é", "a\nb", "\x7f"):
        fsq.senqueue(queue, "", word)
    (root / "mail/queue" / os.fsdecode(b"_20200101000000_0_1_web_0_\xff")).touch()
    done = programs.run("scan", "-v", "mail", "true", settings={"LC_ALL": "C.UTF-8"})
    assert done.returncode == 0
    assert len(listing(root, "done")) == 4
    assert len(listing(root, "fail")) == 1
    assert b"cannot decode the name" in done.stderr


def test_a_down_queue_is_no_success(run: Run, root: Path, queue: str) -> None:
    fsq.down(queue)
    assert run("scan", "mail", "true") == Done(0, "", "")
    fsq.senqueue(queue, "")
    fsq.senqueue(queue, "")
    assert run("scan", "mail", "true") == Done(111, "", "queue mail: is down\n")
    assert run("scan", "-i", "mail", "true") == Done(0, "", "")
    assert len(listing(root, "done")) == 2


def test_the_arguments_of_an_item_can_be_the_command(run: Run, root: Path, queue: str) -> None:
    fsq.senqueue(queue, "data", "sh", "-c", "cat; echo .")
    assert run("scan", "-k", "mail") == Done(0, "data.\n", "")
    fsq.senqueue(queue, "")
    assert "no program" in run("scan", "-k", "mail").err


def test_items_can_be_left_in_place_unopened_and_unlocked(run: Run, root: Path, queue: str) -> None:
    name = fsq.senqueue(queue, "data")
    assert run("scan", "-D", "mail", "cat").out == "data"
    assert listing(root, "queue") == [name]
    with fsq.FSQWorkItem(queue, name):
        assert run("scan", "-D", "mail", "cat").out == ""
        assert run("scan", "-D", "-L", "mail", "cat").out == "data"
        assert run("scan", "-D", "-l", "-E", "-n", "mail", "sh", "-c", "echo ${FSQ_ITEM_ID:-none}").out == "none\n"


def test_hosts_are_scanned(run: Run, root: Path, queue: str) -> None:
    fsq.install_host(queue, "far", "near")
    name = fsq.senqueue(queue, "data")
    assert run("host-dist", "-v", "mail").err == f"{name}: passed on to far, near\n"
    show = ("sh", "-c", 'echo "$FSQ_ITEM_HOST $(cat)"')
    assert run("scan", "-A", "near", "mail", *show).out == "near data\n"
    assert run("scan", "--host=near", "mail", *show).out == ""
    assert run("scan", "-a", "mail", *show).out == "far data\n"
    fsq.down_host(queue, "far")
    (root / "mail/hosts/far/queue" / name).touch()
    assert run("scan", "-a", "mail", *show) == Done(111, "", "queue mail, host far: is down\n")


def test_items_are_distributed_by_links_and_a_trigger_is_pulled(run: Run, root: Path, queue: str) -> None:
    fsq.install_host(queue, "far", "near")
    fsq.host_trigger(queue)
    name = fsq.senqueue(queue, "data")
    fd = os.open(root / "mail/hosts-trigger-s", os.O_RDONLY | os.O_NONBLOCK)
    assert run("host-dist", "-I", "-g", "mail", "far").status == 0
    assert os.read(fd, 10) == b"\0"
    os.close(fd)
    assert (root / "mail/hosts/far/queue" / name).stat().st_nlink == 2
    assert os.listdir(root / "mail/hosts/near/queue") == []
    second = fsq.senqueue(queue, "data")
    done = run("host-dist", "mail", "far", "absent")
    assert "cannot reenqueue into host absent of mail" in done.err
    assert second in listing(root, "fail")


def test_items_are_distributed_unopened_and_unlocked(run: Run, root: Path, queue: str) -> None:
    run("add-host", "far", "mail")
    name = fsq.senqueue(queue, "data")
    with fsq.FSQWorkItem(queue, name):
        assert run("host-dist", "mail") == Done(0, "", "")
        assert listing(root, "hosts/far/queue") == []
        assert run("host-dist", "-n", "mail") == Done(0, "", "")
    assert (root / "mail/hosts/far/queue" / name).read_bytes() == b"data"
    assert listing(root, "done") == [name]


def test_programs_run_one_by_one_by_default(run: Run, root: Path, queue: str, tmp_path: Path) -> None:
    for number in range(4):
        fsq.senqueue(queue, "", number)
    alone = f"mkdir {tmp_path}/busy && sleep 0.05 && rmdir {tmp_path}/busy"
    assert run("scan", "mail", "sh", "-c", alone) == Done(0, "", "")
    assert len(listing(root, "done")) == 4


def test_programs_run_side_by_side_and_no_more_than_allowed(run: Run, root: Path, queue: str, tmp_path: Path) -> None:
    for number in range(4):
        fsq.senqueue(queue, "", number)
    # Each waits for another one, and would be a third if there were too many.
    together = f"""
        cd {tmp_path}; mkdir one 2>/dev/null || mkdir two 2>/dev/null || exit 100
        until [ -d two ] || [ -e met ]; do sleep 0.02; done; touch met; sleep 0.05
        rmdir two 2>/dev/null || rmdir one
    """
    assert run("scan", "-j", "2", "mail", "sh", "-c", together) == Done(0, "", "")
    assert len(listing(root, "done")) == 4


def test_a_rate_is_obeyed(run: Run, root: Path, queue: str) -> None:
    for _ in range(3):
        fsq.senqueue(queue, "")
    assert run("scan", "-r", "1000", "mail", "true").status == 0
    assert len(listing(root, "done")) == 3


def test_an_outcome_that_can_not_be_written_ends_the_scan(run: Run, root: Path, queue: str) -> None:
    fsq.senqueue(queue, "")
    fsq.senqueue(queue, "")
    (root / "mail/done").rmdir()
    (root / "mail/done").write_text("in the way")
    done = run("scan", "mail", "echo", "ran")
    assert (done.status, done.out.count("ran")) == (111, 1)
    assert "cannot move item" in done.err
    assert len(listing(root, "queue")) == 2


# Looking after queues.


def rows(done: Done) -> list[dict[str, Any]]:
    return [json.loads(line) for line in done.out.splitlines()]


def test_queues_and_items_are_listed(run: Run, root: Path, queue: str) -> None:
    names = [fsq.senqueue(queue, "data", number) for number in range(3)]
    assert run("list") == Done(0, "mail\n", "")
    assert rows(run("list", "--json")) == [{"queue": "mail"}]
    assert run("list", "mail").out.split() == names
    assert run("list", "--limit", "2", "mail").out.split() == names[:2]
    assert [row["arguments"] for row in rows(run("list", "--json", "mail"))] == [["0"], ["1"], ["2"]]
    assert run("list", "-p", "done", "mail").out == ""


def test_a_name_moves_no_cursor(run: Run, root: Path, queue: str) -> None:
    fsq.senqueue(queue, "", "\x1b[2J\n")
    out = run("list", "mail").out
    assert "\x1b" not in out
    assert r"\x1b[2J\n" in out


def test_items_are_shown(run: Run, root: Path, queue: str) -> None:
    name = fsq.senqueue(queue, b"\xffdata", "a b")
    shown = run("show", "mail", name).out
    assert re.search(r"arguments: +'a b'", shown)
    assert re.search(r"place: +queue", shown)
    assert rows(run("show", "--json", "mail", name))[0]["size"] == 5
    done = programs.run("show", "--data", "mail", name)
    assert done.stdout == b"\xffdata"


def test_queues_are_counted(run: Run, root: Path, queue: str) -> None:
    fsq.install_host(queue, "far")
    fsq.senqueue(queue, "")
    out = run("stats").out.splitlines()
    assert [line.split()[0] for line in out] == ["queue", "mail", "mail"]
    assert [row["queue_items"] for row in rows(run("stats", "--json", "mail"))] == [1, 0]
    assert rows(run("stats", "--json", "--host", "far", "mail"))[0]["host"] == "far"


def test_failed_items_come_back_and_old_ones_go(run: Run, root: Path, queue: str) -> None:
    fsq.senqueue(queue, "")
    run("scan", "mail", "false")
    (failed,) = listing(root, "fail")
    assert run("redrive", "mail", failed).out == "1 put back\n"
    run("scan", "mail", "false")
    assert rows(run("redrive", "--all", "--json", "mail"))[0]["ids"] == [failed]
    run("scan", "mail", "true")
    assert run("purge", "--older-than", "1d", "mail").out == "mail: 0 removed from done\n"
    assert run("purge", "--older-than", "0", "--dry-run", "mail").out == "mail: 1 would be removed from done\n"
    assert rows(run("purge", "--older-than", "0s", "--json", "mail"))[0]["removed"] == 1
    assert listing(root, "done") == []


def test_litter_is_found_and_repaired(run: Run, root: Path, queue: str) -> None:
    assert run("audit") == Done(0, "nothing found\n", "")
    (root / "mail/tmp/litter").touch()
    assert run("audit", "mail").status == 0, "it may still be written"
    done = run("audit", "--older-than", "0", "mail")
    assert done.status == 111
    assert done.out.startswith(f"tmp-litter: {root}/mail/tmp/litter: nobody has written to it")
    assert rows(run("audit", "--json", "--older-than", "0s"))[0]["kind"] == "tmp-litter"
    assert run("repair", "--older-than", "0", "mail").out.endswith("1 repaired, 0 left\n")
    (root / "mail/tmp/folder").mkdir()
    assert run("repair", "mail").status == 111


# Pages.


def pages_script() -> Any:
    loader = SourceFileLoader("man_script", str(ROOT / "scripts" / "man"))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


def test_the_man_pages_are_those_of_the_commands() -> None:
    assert pages_script().outdated() == [], "run `make docs`"
    commands = {f"man1/fsq-{name}.1" for name in COMMANDS}
    assert set(man.man_pages()) == {"man1/fsq.1", "man7/fsq.7", *commands}


@pytest.mark.parametrize("page", ["man1/fsq.1", "man7/fsq.7"])
def test_the_manual_lists_every_setting_with_its_default(page: str) -> None:
    text = man.man_pages()[page].replace("\\-", "-")
    environment = text.partition(".SH ENVIRONMENT\n")[2].partition("\n.SH ")[0]
    for name, row in fsq.constants.SETTINGS.items():
        assert f"\n.B {name}\n{row.meaning[0].upper()}{row.meaning[1:]}. Default: " in environment, name
    assert "\n.B FSQ_QUEUE_MODE\nThe mode of the directories, in octal. Default: 02770." in environment


def test_the_standard_lists_every_variable_that_the_programs_name() -> None:
    named = set()
    for folder in ("fsq", "cli/fsq"):
        for path in (ROOT / "src" / "penstock" / folder).rglob("*.py"):
            named |= set(re.findall(r"\bFSQ_[A-Z_]*[A-Z]\b", path.read_text("utf-8")))
    listed = set(re.findall(r"^\.B (FSQ_\w+)$", man.man_pages()["man7/fsq.7"], re.MULTILINE))
    assert named == listed


def test_programs_written_for_the_original_find_its_modules() -> None:
    program = (
        "import fsq.exceptions\n"
        "from fsq.constants import FSQ_ROOT\n"
        "assert fsq.exceptions.FSQDownError is fsq.FSQDownError\n"
        "print('found')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout == "found\n", done.stderr


@pytest.mark.parametrize("name", COMMANDS)
def test_a_man_page_lists_every_flag(name: str) -> None:
    page = man.man_pages()[f"man1/fsq-{name}.1"].replace("\\-", "-")
    for option in COMMANDS[name].flags:
        assert f"\n.B {option.names}\n" in page
    assert not re.search(r"^(?!\.(SH|TH|TP|B|\\\") ?)\.", page, re.MULTILINE), "a line that troff takes for a command"
