"""`penstock server` with one more command: after `DEBUG JUMP seconds` both clocks are ahead by them.

What is due by then is done before it answers.
"""

from __future__ import annotations

import time
from typing import Any

from penstock.broker import server
from penstock.broker.commands import server as commands
from penstock.broker.commands.subcommands import Subcommand
from penstock.broker.core import inputs
from penstock.cli.main import main


class Clock:
    """Stands for the module `time` in the server."""

    shift = 0.0
    sleep = staticmethod(time.sleep)

    @classmethod
    def monotonic(cls) -> float:
        return time.monotonic() + cls.shift

    @classmethod
    def time(cls) -> float:
        return time.time() + cls.shift


def jump(broker: Any, client: Any, args: list[bytes]) -> bytes:
    """DEBUG JUMP seconds."""
    Clock.shift += float(args[2])
    broker.set_clock()
    while inputs.tick(broker.node):
        pass
    broker.shell._loop.call_soon(broker.shell._tick)  # its timer was set for what is past by now
    return b"+OK\r\n"


if __name__ == "__main__":
    vars(server)["time"] = Clock
    commands.DEBUG_SUBCOMMANDS[b"JUMP"] = Subcommand(3, 3, jump)
    main()
