"""The table of commands, against what the original's COMMAND answers."""

from penstock.broker.commands.table import COMMANDS, GROUPS

ORIGINAL = """
auth 2 readonly loading fast          fastack -1 write fast
ping -1 readonly fast                 deljob -1 write fast
info -1 readonly loading              show 2 readonly fast
shutdown -1 readonly admin loading    loadjob 2 write
monitor 1 readonly admin              bgrewriteaof 1 readonly admin
debug -2 admin                        qlen 2 readonly fast
config -2 readonly admin              qpeek 3 readonly
cluster -2 readonly admin             qstat 2 readonly fast
client -2 readonly admin              qscan -1 readonly
slowlog -2 readonly                   jscan -1 readonly
time 1 readonly fast                  enqueue -1 write denyoom fast
command 0 readonly loading            nack -1 write denyoom fast
latency -2 readonly admin loading     dequeue -1 write fast
hello -1 readonly fast                working 2 write fast
addjob -4 write denyoom fast          pause -3 readonly fast
getjob -2 write fast                  ackjob -1 write fast
"""

OURS = """
addjobs -5 write denyoom fast         claim -4 write fast
acklease -3 write fast                ackclaim 2 write fast
nacklease -4 write denyoom fast       nackclaim -2 write denyoom fast
extend -4 write fast                  extendclaim 3 write fast
release -3 write fast                 lease -4 write fast
begin -3 write fast                   movejobs -6 write denyoom fast
qsize -2 readonly fast                begin -3 write fast
"""

FLAGS = ("write", "readonly", "denyoom", "admin", "loading", "fast")


def rows(text: str) -> set[str]:
    return {cell.strip() for line in text.strip().splitlines() for cell in (line[:38], line[38:])}


def shown(extension: bool) -> set[str]:
    return {
        f"{info.name} {info.arity} {' '.join(info.flags)}" for info in COMMANDS.values() if info.extension is extension
    }


def test_the_originals_commands_have_its_arities_and_flags() -> None:
    # HELLO alone differs: the original takes no argument there, and ours takes a protocol version.
    assert shown(extension=False) == rows(ORIGINAL)
    assert len(rows(ORIGINAL)) == 32


def test_our_commands_have_theirs() -> None:
    assert shown(extension=True) == rows(OURS)


def test_every_row_is_whole() -> None:
    for name, info in COMMANDS.items():
        assert info.name == name == name.lower()
        assert info.syntax.split()[0] == name.upper()
        assert info.group in GROUPS
        assert info.summary.endswith(".")
        assert info.reply
        assert list(info.flags) == sorted(info.flags, key=FLAGS.index)


def test_brackets_of_every_syntax_are_balanced() -> None:
    for info in COMMANDS.values():
        assert info.syntax.count("[") == info.syntax.count("]"), info.name
