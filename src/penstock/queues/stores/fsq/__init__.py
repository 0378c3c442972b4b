"""What the store of directories is made of; `penstock.queues.stores.fsq.engine` draws what is on the disk.

Read in this order: `naming` (jobs and their names), `line` (the names that wait), `place` (one queue), `taking`,
`ending`, `moving`, `claims`, `keys`, `looking`, `ledger`.
"""
