"""A node of our own whose clocks can be moved ahead, so that no test waits for a lease to end."""

from __future__ import annotations

from pathlib import Path

from tests.processes import NodeProcess

SERVER = Path(__file__).with_name("shifting_server.py")


class ShiftingNode(NodeProcess):
    """A node with a time of its own."""

    shifted = 0.0  # by how many seconds it is ahead

    @property
    def argv(self) -> list[str]:
        python, _, _, *words = super().argv
        return [python, str(SERVER), *words]

    def shift(self, seconds: float) -> None:
        """Let time pass."""
        self.call("DEBUG", "JUMP", str(seconds))
        self.shifted += seconds
