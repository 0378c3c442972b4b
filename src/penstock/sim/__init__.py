"""Stand-ins for what a node can't control, with every fault under a test's hand: for Penstock's tests and for yours."""
