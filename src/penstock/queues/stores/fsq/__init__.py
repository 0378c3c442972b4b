"""The store `fsq:`; the module `driver` draws what is on the disk.

Read in this order: `names` (jobs as items), `listing` (the names that wait), `directory` (one queue), `writer` (push),
`items` (reserve), `leases` (ack, nack, extend), `mover`, `claims`, `unique`, `scan`, `stats`.
"""
