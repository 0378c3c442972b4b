"""Stories of the protocol, as golden text: each file tells one, and is told again by real brokers.

`PENSTOCK_REWRITE=1 pytest tests/transcripts` writes what comes out now; read the difference before committing it.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock.wire import bus
from tests.transcripts.stage import Stage

STORIES = sorted(Path(__file__).parent.glob("*.txt"))


def tell(text: str) -> str:
    stage = Stage()
    blocks = []
    for block in text.split("\n\n"):
        actions = block.strip("\n").split("\n----")[0].split("\n")
        for action in actions:
            if action and not action.startswith("#"):
                stage.do(action)
        told = stage.told()
        does_something = any(action[:1] != "#" for action in actions)
        blocks.append("\n".join([*actions, "----", *(told or ["nothing"])] if does_something else actions))
    return "\n\n".join(blocks) + "\n"


@pytest.mark.parametrize("story", STORIES, ids=[path.stem for path in STORIES])
def test_the_story_goes_as_written(story: Path) -> None:
    written = story.read_text()
    told = tell(written)
    if os.environ.get("PENSTOCK_REWRITE"):
        story.write_text(told)
    assert told == written


def test_the_stories_have_every_message_in_them() -> None:
    words = {word for path in STORIES for word in path.read_text().split()}
    assert set(bus.TYPE_NAMES) <= words
