"""A large body takes its time to another node, and isn't sent again meanwhile."""

from __future__ import annotations

import pytest

from tests.transcripts.stage import Port, Stage


@pytest.mark.parametrize(("size", "again_s"), [(1000, 1), (3_000_000, 1.3)])
def test_a_copy_is_sent_again_when_it_could_have_been_there(size: int, again_s: float) -> None:
    stage = Stage()
    stage.do("nodes A B")
    stage.do("stop B")
    stage.do(f"A ADDJOB q {'x' * size} 60000 REPLICATE 2")
    assert len(stage.told()) == 1
    stage.do(f"wait {again_s - 0.1}")
    assert stage.told() == []
    stage.do("wait 0.2")
    assert stage.told() == ["A -> B  REPLJOB J1(held by AB)"]


@pytest.mark.parametrize("moves", [False, True])
def test_a_link_on_which_something_large_moves_is_kept(monkeypatch: pytest.MonkeyPatch, moves: bool) -> None:
    monkeypatch.setattr(Port, "moves", lambda self, peer: moves)
    stage = Stage()
    stage.do("nodes A B")
    peer = stage.servers["A"].broker.node.cluster.peers[b"b" * 40]
    linked_ms = peer.linked_ms
    stage.do("stop B")
    stage.do("wait 6")
    assert (peer.linked_ms == linked_ms) == moves
