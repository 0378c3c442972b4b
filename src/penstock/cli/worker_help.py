"""The help of `penstock worker`."""

EXAMPLE = "penstock worker sqlite:///jobs.db mail shop.mail:send"

USAGE = """\
usage: penstock worker URL QUEUE [QUEUE ...] MODULE:FUNCTION [options]

Calls a function for each job of the queues, until it gets SIGTERM or SIGINT. The function is called with a Job, as a
task if it is an `async def`, else in a thread. When it returns, the job is done. When it raises, the job comes back
later; after its last try it goes to the dead letters. Modules of the current directory are found.

  URL                    the store: sqlite:///jobs.db, redis+oq://localhost:6379/0, postgresql://localhost/jobs,
                         disque://localhost:7711, and so on. It can be left out where the variable PENSTOCK_URL is
                         set; every user of the machine can read a password on the command line, but not in there

How many:
  -c, --concurrency N    so many jobs at a time (default 10), in each process
  -p, --processes M      so many processes, which are replaced when they die (default: only this one)
  --prefetch N           take so many jobs ahead (default: by how long they take)
  --until-empty          end when no job is ready; those that wait for their time stay

How long:
  --lease SECONDS        jobs of a worker that died come back after so long (default: the store's, mostly 120);
                         made longer while a job runs
  --time-limit SECONDS   a function that takes longer has failed; a plain one can't be ended, so its process is
                         replaced (with --processes) or goes on without that thread
  --stop-within SECONDS  running jobs get so long when the worker must stop, then they go back (default 30)

When a job fails:
  --max-tries N          to the dead letters after so many deliveries, 0: never (default: the store's, or 25)
  --dead-letters QUEUE   the queue for them (default __deadletter__)
  --backoff SECONDS      wait so long before the next try: `5` each time, `1..600` doubles from 1 s up to 600,
                         `1..600*3` grows threefold (default 1..3600); half of it is left to chance

What is said:
  --log text|json        lines for people, or lines of JSON (default text), on standard error
  -v, --verbose          also each job that is done, and where errors arose
  --name NAMESPACE       the namespace of signals and statistics (default N, as in Keuss)
  -h, --help             this text

A function for `penstock worker sqlite:///jobs.db mail shop:send`, in shop.py:
  def send(job):
      print("to", job.payload["to"])

Exit codes: 0 stopped, or empty; 1 it failed; 2 the command line was wrong.
"""
