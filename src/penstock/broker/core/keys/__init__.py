"""Unique keys: at most one job with a key, decided by votes among the nodes that keep the key (its homes).

Nothing uses this yet: no command takes a key, and no message of it goes over the bus. What is here is the protocol as
a state machine, and `tests/sim/test_keys.py` proves it. `docs/explanation/unique-keys.md` explains it.

Read the modules in this order: `messages` (all words that nodes exchange), `configuration` (which nodes are a key's
homes), `members` (how the next configuration is decided, and who may vote), `homes` (what a home keeps and answers),
`copies` (jobs that wait for the vote), `proposals` (what a node does to take, free or look up a key), `inputs`
(everything that can happen to this part of a node).

Rules that hold here, beside those of `penstock.broker.core`:

1. A home answers only what its journal will have: the shell writes the journal before it sends the messages of a turn.
2. A key changes by a vote of a majority of its homes, under one numbered configuration, with a ballot higher than all
   that this majority has promised. Whoever proposes a value has read that majority first, and carries on what it found.
3. A job is proposed for its key only when all of its copies are there. A copy waits until the vote is known.
4. Nothing is concluded from silence. Time only decides when to ask again.
"""
