"""A node that is like one of the original Disque: ours, without the commands that are only ours.

MONITOR shows whether a word was sent that an original would refuse.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from penstock.broker.commands.table import COMMANDS
from penstock.client import Connection
from tests.stores.shifting_node import ShiftingNode

# Words that stand in commands of the original with our own meaning.
OUR_WORDS = {b"LEASE", b"AFTER", b"COMPACT", b"SCHEDULED", b"RESERVED"}


class OriginalNode(ShiftingNode):
    """A node without what is only ours."""

    @property
    def argv(self) -> list[str]:
        ours = [name for name, info in COMMANDS.items() if info.extension]
        conf = self.directory / "original.conf"
        conf.write_text("".join(f'rename-command {name} ""\n' for name in ours))
        python, script, server, *words = super().argv
        return [python, script, server, str(conf), *words]


@contextmanager
def understanding(node: OriginalNode) -> Iterator[None]:
    """See to it that nothing is sent which an original would not understand."""
    with Connection(node.host, node.port, timeout=5) as monitor:
        assert monitor.execute("MONITOR") == b"OK"
        yield
        node.call("PING", "the end")
        while b'"the end"' not in (line := monitor.receive()):
            words = [word.strip(b'"').upper() for word in line.split(b" ")[2:]]
            if words[0] not in (b"COMMAND", b"DEBUG"):
                assert not OUR_WORDS & set(words), line
                info = COMMANDS.get(words[0].decode().lower())
                assert info is not None, line
                assert not info.extension, line
