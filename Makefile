# Each target is one script; `make` alone lists them.
.DEFAULT_GOAL := help
.PHONY: help setup demo test quick test-long lint format docs docs-site blocking sim sim-mutants native dist bench bench-broker bench-cluster bench-fsq bench-lake bench-mongo bench-pipelines bench-queues bench-spark bench-tasks lock clean

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

docs: setup  ## write the pages of docs/reference that are made from the source, and the man pages
	@.venv/bin/python scripts/docs
	@.venv/bin/python scripts/man

# Every page each time: Sphinx would not repeat the warnings of a page that hasn't changed, nor renew its list of pages.
docs-site: setup  ## build the documentation as a site with search, into build/site
	@.venv/bin/python -m sphinx -q --fresh-env --write-all --fail-on-warning --keep-going -c docs -d .cache/sphinx . build/site
	@echo "open build/site/index.html"

SEEDS ?= 1-1000

sim: setup  ## simulated clusters under faults: make sim SEEDS=1-100000
	@.venv/bin/python -m penstock.sim --seeds $(SEEDS)

sim-mutants: setup  ## plant defects in the core, and look for the seeds that find them
	@.venv/bin/python -m tests.sim.mutants

blocking: setup  ## write the blocking form of modules that await
	@.venv/bin/python scripts/blocking

native: setup  ## compile the hot modules (setup does it too, where there is a compiler)
	@.venv/bin/python scripts/native

dist: setup  ## build the source distribution and the wheel of this platform into dist/
	@.venv/bin/python -m hatchling build --clean --directory dist

bench: setup  ## every benchmark
	@scripts/bench

bench-broker: setup  ## the broker beside its peers
	@.venv/bin/python -m bench.broker

bench-cluster: setup  ## three nodes beside redis-server, and the gossip of up to a hundred
	@.venv/bin/python -m bench.cluster
	@.venv/bin/python -m bench.gossip

bench-fsq: setup  ## directories as queues beside their peers
	@.venv/bin/python -m bench.fsq

bench-lake: setup  ## the lake at 1, 3 and 10 million events beside Parquet and DuckDB, and what events cost a node: half an hour
	@.venv/bin/python -m bench.lake

bench-mongo: setup  ## queues on MongoDB beside those of Keuss on the same server
	@.venv/bin/python -m bench.mongo

bench-pipelines: setup  ## pipelines of five links on workers and on Spark, beside bare stores
	@.venv/bin/python -m bench.pipelines

bench-queues: setup  ## queues in stores beside those of others, which are installed for it
	@scripts/setup bench
	@.venv/bin/python -m bench.queues

bench-tasks: setup  ## tasks beside Celery, RQ, Dramatiq, Huey, arq, taskiq and procrastinate, which are installed for it
	@scripts/setup bench
	@.venv/bin/python -m bench.tasks

bench-spark: setup  ## Spark on every store beside a plain loop, and on a million jobs of the broker
	@.venv/bin/python -m bench.spark

lock:  ## renew the lock files
	@scripts/lock

clean:  ## remove what setup, tests and builds have made
	@scripts/clean
