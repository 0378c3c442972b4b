"""What `penstock cluster` says while it changes something: sentences, or with --json a line of JSON for each."""

from __future__ import annotations

import json
import sys


class Voice:
    """Tells events. Each has a name and facts for programs, and a sentence for people."""

    def __init__(self, is_json: bool = False) -> None:
        self.is_json = is_json

    def tell(self, event: str, sentence: str, **facts: object) -> None:
        """Say that something has happened. An empty sentence is for programs only."""
        if self.is_json:
            print(json.dumps({"event": event, **facts}), flush=True)
        elif sentence:
            print(sentence, flush=True)

    def warn(self, sentence: str) -> None:
        """Say what somebody should look at; programs get it in order with the rest, people on standard error."""
        if self.is_json:
            print(json.dumps({"event": "warning", "text": sentence}), flush=True)
        else:
            print(f"Warning: {sentence}", file=sys.stderr, flush=True)
