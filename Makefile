# Each target is one script; `make` alone lists them.
.DEFAULT_GOAL := help
.PHONY: help setup demo test quick test-long lint format docs blocking sim sim-mutants native bench bench-broker bench-cluster bench-fsq bench-queues bench-spark lock clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup:  ## install what running and testing need
	@scripts/setup dev

demo:  ## install what running needs, Spark included, and give a tour: a cluster that loses a node, and no job
	@scripts/setup demo
	@.venv/bin/python scripts/demo

test: setup  ## lint and every test, as CI runs them
	@scripts/test all

quick: setup  ## lint and the unit tests that are not slow: under a minute
	@scripts/test quick

test-long: setup  ## like test, with many more random histories and longer runs
	@PENSTOCK_LONG=1 scripts/test all

lint: setup  ## ruff and mypy
	@scripts/lint

format: setup  ## put the code into the house's form
	@scripts/format

docs:  ## write the pages of docs/reference that are made from the source, and the man pages
	@scripts/docs
	@scripts/man

SEEDS ?= 1-1000

sim: setup  ## simulated clusters under faults: make sim SEEDS=1-100000
	@.venv/bin/python -m penstock.sim --seeds $(SEEDS)

sim-mutants: setup  ## plant defects in the core, and look for the seeds that find them
	@.venv/bin/python -m tests.sim.mutants

blocking: setup  ## write the blocking form of modules that await
	@.venv/bin/python scripts/blocking

native: setup  ## compile the hot modules (setup does it too, where there is a compiler)
	@.venv/bin/python scripts/native

bench: setup  ## every benchmark
	@scripts/bench

bench-broker: setup  ## the broker beside its peers
	@.venv/bin/python -m bench.broker

bench-cluster: setup  ## three nodes beside redis-server, and the gossip of up to a hundred
	@.venv/bin/python -m bench.cluster
	@.venv/bin/python -m bench.gossip

bench-fsq: setup  ## directories as queues beside their peers
	@.venv/bin/python -m bench.fsq

bench-queues: setup  ## queues in stores beside those of others, which are installed for it
	@scripts/setup bench
	@.venv/bin/python -m bench.queues

bench-spark: setup  ## Spark on every store beside a plain loop, and on a million jobs of the broker
	@.venv/bin/python -m bench.spark

lock:  ## renew the lock files
	@scripts/lock

clean:  ## remove what setup, tests and builds have made
	@scripts/clean
