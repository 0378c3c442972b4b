"""Every command of a node, as facts: what COMMAND answers, what `help` prints, what the docs' reference is
made of.

There are no handlers here and nothing is imported but typing: the node, the command line and whatever prints
the docs all read the same rows. The first 32 are Disque's, with its arities and flags; a client that compares
COMMAND's answer sees no difference in them but HELLO's arity, which had to open up for the protocol version.
The rows after them are ours, marked `extension`.
"""

from typing import NamedTuple


class CommandInfo(NamedTuple):
    """One command. The order of `flags` is the order in which COMMAND shows them."""

    name: str
    arity: int  # counts the command word; negative means at least that many; 0 means any
    flags: tuple[str, ...]  # of: write, readonly, denyoom, admin, loading, fast
    group: str  # one of GROUPS
    syntax: str  # with the command word, options in brackets, literal words in capitals
    summary: str
    reply: str
    errors: tuple[str, ...]  # to be ready for, beyond arity, NOAUTH, OOM, MISCONF and LOADING
    extension: bool


GROUPS = ("connection", "server", "cluster", "queues", "jobs")

_SYNTAX = "ERR syntax error"
_NUMBER = "ERR value is not an integer or out of range"
_BAD_ID = "BADID Invalid Job ID format."
_TIMEOUT = ("ERR timeout is not an integer or out of range", "ERR timeout is negative")
_LEAVING = "LEAVING This node is leaving the cluster, please connect to a different one"
_CURSOR = "ERR invalid cursor or option name"
_STATUSES = "array of statuses in the order of the ids: OK, STALE (the lease is over or not yours), NOJOB"
_ADD_ERRORS = (
    _SYNTAX,
    *_TIMEOUT,
    "ERR REPLICATE must be between 1 and 65535",
    "ERR TTL must be a number > 0",
    "ERR RETRY time must be a non negative number",
    "ERR DELAY time must be a non negative number",
    "ERR MAXLEN must be a positive number",
    "ERR With RETRY set to 0 please explicitly set  REPLICATE to 1 (at-most-once delivery)",
    "ERR The specified DELAY is greater than TTL. Job refused since would never be delivered",
    "NOREPL (too few reachable nodes, or not replicated within ms-timeout)",
    "MAXLEN Queue is already longer than the specified MAXLEN count",
    "PAUSED Queue paused in input, try later",
    _LEAVING,
)

_ORIGINAL = (
    # name, arity, flags, group, syntax, summary, reply, errors
    ("auth", 2, "readonly loading fast", "connection", "AUTH password",
     "Show the password that `requirepass` asks for.", "OK",
     ("ERR Client sent AUTH, but no password is set", "ERR invalid password")),
    ("ping", -1, "readonly fast", "connection", "PING [message]",
     "Test the connection.", "PONG, or the message", ()),
    ("info", -1, "readonly loading", "server", "INFO [section]",
     "Facts and counters of this node; `all` adds the statistics of every command.",
     "text of `key:value` lines under `# Section` headings", (_SYNTAX,)),
    ("shutdown", -1, "readonly admin loading", "server", "SHUTDOWN [REWRITE-AOF]",
     "Stop this node, first rewriting its journal if asked to.", "none: the connection closes",
     (_SYNTAX, "ERR Errors trying to SHUTDOWN. Check logs.")),
    ("monitor", 1, "readonly admin", "server", "MONITOR",
     "Watch every command this node is about to run.", "OK, then a line a command until you disconnect", ()),
    ("debug", -2, "admin", "server",
     ("DEBUG FLUSHALL | LOADAOF | RESTART [ms] | CRASH-AND-RECOVER [ms] | SLEEP seconds | ERROR text"
      " | STRUCTSIZE | SEGFAULT | OOM | ASSERT"),
     "Tools for tests: they drop, reload, restart or crash. Not for production.", "depends on the subcommand",
     ("ERR Unknown DEBUG subcommand or wrong number of arguments for '...'",)),
    ("config", -2, "readonly admin", "server",
     "CONFIG GET pattern | SET directive value | REWRITE | RESETSTAT",
     "Read or change the configuration, write it back to its file, or zero the statistics.",
     "GET: array of names and values by turns; else OK",
     ("ERR Unsupported CONFIG parameter: ...", "ERR Invalid argument '...' for CONFIG SET '...'",
      "ERR The server is running without a config file",
      "ERR CONFIG subcommand must be one of GET, SET, RESETSTAT, REWRITE")),
    ("cluster", -2, "readonly admin", "cluster",
     ("CLUSTER MEET ip port | NODES | INFO | MYID | FORGET node-id | RESET [SOFT|HARD] | LEAVING [yes|no]"
      " | SAVECONFIG"),
     "Join, look at, and leave a cluster. RESET also drops all jobs of this node.",
     "NODES, INFO: text; MYID: id; LEAVING: yes or no; else OK",
     ("ERR Wrong CLUSTER subcommand or number of arguments", "ERR Unknown node ...",
      "ERR Invalid node address specified: ...", "ERR I tried hard but I can't forget myself...")),
    ("client", -2, "readonly admin", "connection",
     ("CLIENT LIST | KILL ip:port | KILL [ID id] [TYPE normal] [ADDR ip:port] [SKIPME yes|no] | GETNAME"
      " | SETNAME name | SETINFO attr value | PAUSE ms | REPLY ON|OFF|SKIP"),
     "List, name, pause or disconnect clients.",
     "LIST: a line a client; KILL with filters: integer; GETNAME: name or nil; else OK",
     ("ERR No such client", "ERR Client names cannot contain spaces, newlines or special characters.",
      "ERR Syntax error, try CLIENT (LIST | KILL ip:port | GETNAME | SETNAME connection-name)")),
    ("slowlog", -2, "readonly", "server", "SLOWLOG GET [count] | LEN | RESET",
     "The commands that took longer than slowlog-log-slower-than.",
     "GET: array of [id, time, microseconds, [arguments]]; LEN: integer; RESET: OK",
     ("ERR Unknown SLOWLOG subcommand or wrong # of args. Try GET, RESET, LEN.",)),
    ("time", 1, "readonly fast", "server", "TIME",
     "The node's wall clock.", "array of seconds and microseconds", ()),
    ("command", 0, "readonly loading", "server", "COMMAND [COUNT | INFO name [name ...]]",
     "What commands this node knows.", "array of [name, arity, [flags], 0, 0, 0]; COUNT: integer",
     ("ERR Unknown subcommand or wrong number of arguments.",)),
    ("latency", -2, "readonly admin loading", "server",
     "LATENCY LATEST | HISTORY event | GRAPH event | DOCTOR | RESET [event ...]",
     "Spikes above latency-monitor-threshold, and what to do about them.",
     "LATEST, HISTORY: array; GRAPH, DOCTOR: text; RESET: integer",
     (_SYNTAX, "ERR No samples available for event '...'")),
    ("hello", -1, "readonly fast", "connection", "HELLO [2|3 [AUTH user password] [SETNAME name]]",
     "The nodes of the cluster, to choose one by priority; with a version, switches to that protocol instead.",
     ("array: 1, my id, then [id, ip, port, priority] for every node, lowest priority is best; with a version:"
      " facts about this node by name"),
     ("NOPROTO unsupported protocol version", "ERR invalid password")),
    ("addjob", -4, "write denyoom fast", "jobs",
     "ADDJOB queue body ms-timeout [REPLICATE n] [DELAY s] [RETRY s] [TTL s] [MAXLEN n] [ASYNC]",
     ("Add a job, and wait until it is on REPLICATE nodes (not with ASYNC): 3 unless given, or all nodes if there are"
      " fewer. A job that nobody has acknowledged after TTL seconds expires, delivered or not: it is removed, and"
      " counted in QSTAT and INFO. TTL is 86400, one day, unless given, and at most 2147483647, 68 years. RETRY is"
      " 300, or a tenth of TTL if that is less."), "the job's id", _ADD_ERRORS),
    ("getjob", -2, "write fast", "jobs",
     ("GETJOB [NOHANG] [TIMEOUT ms] [COUNT n] [WITHCOUNTERS] [WITHCTIME] [LEASE ms [BEGIN n|ALL]]"
      " FROM queue [queue ...]"),
     ("Take jobs, waiting for one if there is none. With LEASE they are yours for ms, under a token. With BEGIN n, work"
      " on the first n of them begins at once, but for jobs that were queued before: only these are a try."),
     ("array of [queue, id, body], with LEASE [queue, id, body, token]; WITHCOUNTERS adds nacks and"
      " additional-deliveries, BEGIN these and tries (earlier leases under which work began) and begun (1 or 0),"
      " WITHCTIME ctime; nil if there is none"),
     (_SYNTAX, "ERR COUNT must be a number greater than zero", "ERR BEGIN must be a number of jobs, or ALL", *_TIMEOUT,
      _LEAVING)),
    ("fastack", -1, "write fast", "jobs", "FASTACK id [id ...]",
     "Acknowledge with one message instead of two rounds: cheaper, more duplicates when nodes fail.",
     "integer: jobs deleted here", (_BAD_ID,)),
    ("deljob", -1, "write fast", "jobs", "DELJOB id [id ...]",
     "Delete jobs from this node only.", "integer: jobs deleted here", (_BAD_ID,)),
    ("show", 2, "readonly fast", "jobs", "SHOW id",
     "All this node knows about a job.", "array of names and values by turns, or nil", (_BAD_ID,)),
    ("loadjob", 2, "write", "jobs", "LOADJOB serialized-job",
     "The record of a job in the journal; not for clients.", "none",
     ("ERR LOADJOB is a special command only processed from AOF",)),
    ("bgrewriteaof", 1, "readonly admin", "server", "BGREWRITEAOF",
     "Rewrite the journal with only the jobs that are alive.", "Background append only file rewriting started",
     ("ERR Background append only file rewriting already in progress",)),
    ("qlen", 2, "readonly fast", "queues", "QLEN queue",
     "How many jobs wait in this node's part of a queue.", "integer", ()),
    ("qpeek", 3, "readonly", "queues", "QPEEK queue count",
     "Look at waiting jobs without taking them: oldest first, newest first for a negative count.",
     "array of [queue, id, body]", (_NUMBER,)),
    ("qstat", 2, "readonly fast", "queues", "QSTAT queue",
     ("Length, age, traffic, import sources, pause state and expired jobs of this node's part of a queue. A queue"
      " without jobs, clients and pause is forgotten after 5 minutes without traffic, with its counters."),
     "array of names and values by turns, or nil", ()),
    ("qscan", -1, "readonly", "queues",
     "QSCAN [cursor] [COUNT n] [BUSYLOOP] [MINLEN n] [MAXLEN n] [IMPORTRATE n]",
     ("Walk over the names of this node's queues. A call gives up to COUNT names (100 if not given) and 1 MB, and looks"
      " at ten times as many queues at most; BUSYLOOP or a negative COUNT gives all in one reply."),
     "array: next cursor (0 at the end), array of names",
     (_SYNTAX, _CURSOR, _NUMBER)),
    ("jscan", -1, "readonly", "jobs",
     ("JSCAN [cursor] [COUNT n] [BUSYLOOP] [QUEUE queue] [STATE wait-repl|active|queued|acked|scheduled|reserved ...]"
      " [AWAY node-id ...] [REPLY all|id|compact]"),
     ("Walk over this node's jobs. A call gives up to COUNT jobs (100 if not given) and 1 MB, or one job, and looks at"
      " ten times as many at most; BUSYLOOP or a negative COUNT gives all in one reply. A job that is there from the"
      " first call to the last is met. AWAY adds copies of jobs that were last with this node, if this one is the first"
      " of their other holders."),
     "array: next cursor (0 at the end), array of ids, or of jobs as SHOW gives them",
     (_SYNTAX, _CURSOR, _NUMBER, "ERR Invalid job state name", "ERR Invalid REPLY type, try ID or ALL")),
    ("enqueue", -1, "write denyoom fast", "jobs", "ENQUEUE id [id ...]",
     "Put jobs that are being worked on back into their queue.", "integer: jobs queued", (_BAD_ID,)),
    ("nack", -1, "write denyoom fast", "jobs", "NACK [AFTER ms] id [id ...]",
     "Return jobs to their queues as failed: queued again at once or after ms, and counted.", "integer: jobs queued",
     (_BAD_ID,)),
    ("dequeue", -1, "write fast", "jobs", "DEQUEUE id [id ...]",
     "Take jobs out of their queue without delivering them; they come back after their retry time.",
     "integer: jobs taken out", (_BAD_ID,)),
    ("working", 2, "write fast", "jobs", "WORKING id",
     "Still at it: postpone the next delivery by the job's retry time.", "integer: the retry time in seconds",
     (_BAD_ID, "NOJOB Job not known in the context of this node.",
      "TOOLATE Half of job TTL already elapsed, you are no longer allowed to postpone the next delivery.")),
    ("pause", -3, "readonly fast", "queues",
     "PAUSE queue in|out|all|none|state [in|out|all|none|state|bcast ...]",
     "Stop a queue from taking in or giving out jobs; `bcast` tells all nodes.",
     "the state after it: in, out, all or none", (_SYNTAX,)),
    ("ackjob", -1, "write fast", "jobs", "ACKJOB id [id ...]",
     "The jobs are done: never deliver them again, on any node.",
     "integer: jobs known here and not yet acked", (_BAD_ID,)),
)  # fmt: skip

_EXTENSIONS = (
    ("addjobs", -5, "write denyoom fast", "jobs",
     ("ADDJOBS queue ms-timeout [REPLICATE n] [DELAY s] [RETRY s] [TTL s] [MAXLEN n] [ASYNC]"
      " BODIES body [body ...]"),
     "Add many jobs in one command; everything after BODIES is a body.",
     "array of ids, in the order of the bodies", _ADD_ERRORS),
    ("acklease", -3, "write fast", "jobs", "ACKLEASE id token [id token ...] [BEGIN id token [id token ...]]",
     ("Acknowledge jobs you hold under a lease; one you no longer hold is left alone. With BEGIN, work on other jobs"
      " has begun: as the command BEGIN, without statuses."), _STATUSES,
     (_BAD_ID, _SYNTAX)),
    ("begin", -3, "write fast", "jobs", "BEGIN id token [id token ...]",
     ("Begin to work on jobs that you took ahead, with GETJOB BEGIN: from now on the delivery counts as a try, also if"
      " the lease ends."), _STATUSES, (_BAD_ID, _SYNTAX)),
    ("nacklease", -4, "write denyoom fast", "jobs", "NACKLEASE ms id token [id token ...]",
     "Return jobs you hold under a lease to their queue after ms.", _STATUSES,
     (_BAD_ID, _SYNTAX, _NUMBER)),
    ("release", -3, "write fast", "jobs", "RELEASE id token [id token ...]",
     ("Return jobs that you hold under a lease and have not begun: queued again as if nobody had fetched them,"
      " and nothing is counted."), _STATUSES, (_BAD_ID, _SYNTAX)),
    ("lease", -4, "write fast", "jobs", "LEASE ms id token [id token ...]",
     ("Lease jobs by their ids, for ms, with new tokens: those that wait in their queues, paused or not, and those"
      " that you hold under this token."),
     ("array in the order of the ids: [queue, id, body, token, nacks, n, additional-deliveries, n, tries, n, begun, n]"
      " as GETJOB with BEGIN gives it, or nil for a job that is with somebody else, or gone"),
     (_BAD_ID, _SYNTAX, _NUMBER)),
    ("extend", -4, "write fast", "jobs", "EXTEND ms id token [id token ...]",
     "Make leases last ms from now.", _STATUSES, (_BAD_ID, _SYNTAX, _NUMBER)),
    ("claim", -4, "write fast", "jobs", "CLAIM key [COUNT n] [LEASE ms] FROM queue [queue ...]",
     ("Lease up to n jobs under a key. The same key gives the same jobs again and renews their lease;"
      " COUNT 0 only looks at what the key holds."),
     "array of [queue, id, body, nacks, additional-deliveries, ctime]", (_SYNTAX, _NUMBER, _LEAVING)),
    ("ackclaim", 2, "write fast", "jobs", "ACKCLAIM key",
     "Acknowledge all jobs of a claim, and end it.", "integer: jobs acknowledged", ()),
    ("nackclaim", -2, "write denyoom fast", "jobs", "NACKCLAIM key [ms]",
     "Return all jobs of a claim to their queues, at once or after ms, and end it.",
     "integer: jobs given back", (_NUMBER,)),
    ("extendclaim", 3, "write fast", "jobs", "EXTENDCLAIM key ms",
     "Make the leases of a claim last ms from now.", "integer: jobs extended", (_NUMBER,)),
    ("qsize", -2, "readonly fast", "queues", "QSIZE queue [node-id ...]",
     ("How many jobs wait in this node's part of a queue, and how many it stands in for: copies of jobs that were last"
      " with one of these nodes, which can't be reached, of which this node is the first of the other holders by id."),
     "array of three integers: jobs that wait here; copies; copies of jobs with a delay, which may not be over",
     ("ERR the id of a node must be 40 characters",)),
    ("movejobs", -6, "write denyoom fast", "jobs",
     ("MOVEJOBS queue ms-timeout [REPLICATE n] [DELAY s] [RETRY s] [TTL s] [MAXLEN n]"
      " JOBS id token [id token ...] | BODIES id token body [id token body ...]"),
     ("Move jobs to a queue, each in one step: a new job is added as by ADDJOB, and the old one acknowledged when the"
      " new one is on REPLICATE nodes; or nothing changes. Token 0 is for a job that nobody has, and ANY for one by its"
      " id alone, whoever has it. The new job has the old body or the given one, and its counters begin at 0. Only the"
      " node that gave a lease can move the job. Options that are not given are those of ADDJOB, not of the old job."),
     ("array in the order of the ids: the id of the new job, or STALE (the lease is over or not yours; with token 0,"
      " somebody has the job), or NOJOB"),
     ("ERR MOVEJOBS waits for the copies of the new jobs: ASYNC can't be given", _BAD_ID,
      *[text for text in _ADD_ERRORS if text != _LEAVING])),
)  # fmt: skip


def _rows(
    rows: tuple[tuple[str, int, str, str, str, str, str, tuple[str, ...]], ...], *, extension: bool
) -> dict[str, CommandInfo]:
    return {
        name: CommandInfo(name, arity, tuple(flags.split()), group, syntax, summary, reply, errors, extension)
        for name, arity, flags, group, syntax, summary, reply, errors in rows
    }


COMMANDS: dict[str, CommandInfo] = {
    **_rows(_ORIGINAL, extension=False),
    **_rows(_EXTENSIONS, extension=True),
}
