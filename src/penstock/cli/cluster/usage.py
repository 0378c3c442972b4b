"""The help texts of `penstock cluster`: what a command does, examples that can be typed as they are, exit codes."""

USAGE = """\
usage: penstock cluster COMMAND ...

Try a cluster on this machine, or manage one.

On this machine, to try one:
  create N        start N nodes that form a cluster, each with a directory of its own
  stop            stop the nodes that create has started
  start           start them again, with the jobs they had

Any cluster, wherever its nodes run:
  status          a table of the nodes, and what is wrong
  add ADDRESS     add a running node to the cluster
  drain ADDRESS   move all jobs of a node to the others
  remove ADDRESS  drain a node, then remove it from the cluster
  forget NODE     make all nodes forget a dead one

An ADDRESS is host:port, or host alone for port 7711. `penstock cluster COMMAND --help` explains a command.

Try it:
  penstock cluster create 3
  penstock cli ADDJOB mail 'hello' 0
  penstock cluster status
  penstock cluster stop

Exit codes: 0 done (of status: and all is well), 1 it failed, or something is wrong with the cluster, 2 the command
line was wrong, 130 interrupted.
"""

# \b keeps typer from rewrapping the lines of a paragraph.
CREATE = """\
Start N nodes on this machine that form a cluster, to try one.

Each gets a directory, DIR/node-1 and so on, with its configuration, its log and its jobs, and goes to the background.
They listen on 127.0.0.1 only, from --base-port on; ports in use are skipped. A port and that port + 10000, for the bus
between nodes, must be free.

\b
Examples:
  penstock cluster create 3
  penstock cluster create 7 --dir /tmp/seven --base-port 8000
  penstock cluster create 3 --replace
  penstock cluster create 3 --events events

Exit codes: 0 all nodes see each other, 1 they don't, and were stopped again, 2 a wrong option, or DIR is taken.
"""

START = """\
Start the nodes of DIR again, with the jobs they had. Nodes that run already are not restarted.

\b
Examples:
  penstock cluster start
  penstock cluster start --dir /tmp/seven

Exit codes: 0 all run and see each other, 1 they don't, 2 there is no cluster in DIR.
"""

STOP = """\
Stop the nodes that `create` or `start` has started in DIR, and no other process.

Their directories and jobs stay. To delete them as well, delete DIR afterwards.

\b
Examples:
  penstock cluster stop
  penstock cluster stop --dir /tmp/seven && rm -r /tmp/seven

Exit codes: 0 none of them runs any more, 1 one still does, 2 there is no cluster in DIR.
"""

STATUS = """\
Show the nodes of a cluster, what they hold, and what is wrong.

One node is asked for the list of nodes, then all of them are asked. Without ADDRESS it is a node of the cluster in
penstock-cluster/, if that is in this directory, else the node at 127.0.0.1:7711. STATE and LINK are each node's state
as the first node sees it, SEES is the number of other nodes that a node can reach. JOBS counts copies; ACKED are jobs
that are done, and kept until all nodes that had a copy know it ("-": too many jobs to count). A warning follows if a
node can't be asked, or if nodes disagree about each other.

\b
Examples:
  penstock cluster status
  penstock cluster status 10.0.0.1:7711 --watch 2
  penstock cluster status --json | jq '.nodes[] | {address, jobs}'
  PENSTOCK_PASSWORD=secret penstock cluster status 10.0.0.1 --cacert ca.pem

Exit codes: 0 all nodes answer and agree, 1 the node can't be asked, or something is wrong, 2 a wrong option. With
--watch it goes on until Ctrl-C, which is 0.
"""

ADD = """\
Add a node to a cluster, and wait until all nodes see it.

Start the node first, with `penstock server`. ADDRESS must be reachable for the other nodes. A node that is in another
cluster already, or has jobs, is refused: --force joins both into one. If the nodes don't see each other in time, they
are made to forget each other again.

\b
Examples:
  penstock cluster add 10.0.0.4:7711 --to 10.0.0.1:7711
  penstock cluster add 127.0.0.1:7714 --to 127.0.0.1:7711

Exit codes: 0 all nodes see it, 1 it was refused, or not seen in time, 2 a wrong option.
"""

DRAIN = """\
Move all jobs of a node to the others, until it has none.

The node is leaving from then on: clients use other nodes, and it takes no new jobs. Jobs that a worker has leased stay
until they are done or the lease ends. If there is no progress for a while, the reason is printed. Ctrl-C ends this
command, not the drain; to cancel the drain: penstock cli -p PORT CLUSTER LEAVING no

\b
Examples:
  penstock cluster drain 10.0.0.3:7711
  penstock cluster drain 10.0.0.3:7711 --json --timeout 600

Exit codes: 0 it has no jobs, 1 it can't be drained, or not in time, 2 a wrong option, 130 interrupted: the drain goes
on.
"""

REMOVE = """\
Drain a node, make all others forget it, and reset it to a node without a cluster.

No job is lost: the node is only reset when it is empty, and all others have forgotten it. If this command is
interrupted, run it again. A node that can't be asked now would bring this one back later, so all must answer, or be
forgotten first.

\b
Examples:
  penstock cluster remove 10.0.0.3:7711
  penstock cluster remove 10.0.0.3:7711 --shutdown

Exit codes: 0 it is removed, 1 it isn't, 2 a wrong option, 130 interrupted.
"""

FORGET = """\
Make all nodes of a cluster forget a dead one.

NODE is its address, its id, or the first 4 or more characters of its id. Acked jobs no longer wait for it. A live node
is refused: use `remove`, which drains it first. If a forgotten node starts again, it still has its jobs, and the others
ignore it: add it again with `penstock cluster add --force`, or empty it with CLUSTER RESET.

\b
Examples:
  penstock cluster forget 10.0.0.3:7711 --from 10.0.0.1:7711
  penstock cluster forget 530f2c58

Exit codes: 0 all nodes that could be asked have forgotten it, 1 they have not, 2 there is no such node.
"""
