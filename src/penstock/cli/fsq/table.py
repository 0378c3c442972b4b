"""The commands of `fsq` and their flags, as tables: parsing, help, man pages and the reference are made from these."""

from typing import NamedTuple


class Flag(NamedTuple):
    """One flag. Those with a value may be repeated only where the text says so; else the last one counts."""

    short: str
    long: str
    value: str
    text: str

    @property
    def names(self) -> str:
        """Return how it is written, such as `-m, --mode MODE`."""
        value = f" {self.value}" if self.value else ""
        return ", ".join(name for name in (f"-{self.short}" * bool(self.short), f"--{self.long}") if name) + value


class FsqCommand(NamedTuple):
    """One command: its function, its arguments and its flags."""

    function: str  # module:function of this folder
    syntax: str  # what follows the flags
    summary: str
    text: str
    flags: tuple[Flag, ...] = ()
    ours: bool = False  # not in the original


HELP = Flag("h", "help", "", "Print how the command is used, and end.")
VERBOSE = Flag("v", "verbose", "", "Say what is done.")
JSON = Flag("", "json", "", "Print JSON: one object a line.")
OWNER = Flag("o", "owner", "USER", "The owner of everything that is made, by name or number.")
USER = Flag("u", "user", "USER", "The owner, by name or number.")
GROUP = Flag("g", "group", "GROUP", "The group, by name or number.")
MODE = Flag("m", "mode", "MODE", "The mode, in octal.")
HOST = Flag("", "host", "HOST", "The queue of this host, in place of the main one.")
PLACE = Flag("p", "place", "PLACE", "Where: queue, done, fail or tmp.")

SCANNING = (
    Flag("i", "ignore-down", "", "Scan a queue that is down."),
    Flag("n", "no-open", "", "Don't open the items: no lock, and the standard input is that of the scan."),
    Flag("D", "no-done", "", "Leave the items in the queue, whatever comes of them."),
    Flag("l", "lock", "", "Take and respect locks (the default)."),
    Flag("L", "no-lock", "", "Neither take nor respect locks."),
    Flag("t", "ttl", "SECONDS", "Fail items that are older (FSQ_TTL)."),
    Flag("m", "max-tries", "COUNT", "Fail items after this number of tries (FSQ_MAX_TRIES); 0: no limit."),
    Flag("S", "success-code", "CODE", "The exit code that means success (FSQ_SUCCESS)."),
    Flag("T", "fail-tmp-code", "CODE", "The exit code that means: try again (FSQ_FAIL_TMP)."),
    Flag("F", "fail-perm-code", "CODE", "The exit code that means: failed for good (FSQ_FAIL_PERM)."),
)

LAUNCHER = (
    HELP,
    Flag("l", "list", "", "List the commands, and end."),
    Flag("V", "version", "", "Print the version, and end."),
    Flag("c", "charset", "CHARSET", "The charset of arguments (FSQ_CHARSET)."),
    Flag("e", "exec-dir", "DIRECTORY", "Where further commands are, one Python file each (FSQ_EXEC_DIR)."),
    Flag("r", "root-dir", "DIRECTORY", "The directory of all queues (FSQ_ROOT)."),
    Flag("q", "queue-dir", "NAME", "The name of the directory of waiting items (FSQ_QUEUE)."),
    Flag("t", "tmp-dir", "NAME", "The name of the directory of items being written (FSQ_TMP)."),
    Flag("d", "done-dir", "NAME", "The name of the directory of done items (FSQ_DONE)."),
    Flag("", "fail-dir", "NAME", "The name of the directory of failed items (FSQ_FAIL)."),
    Flag("D", "down-file", "NAME", "The name of the down file (FSQ_DOWN)."),
    Flag("T", "trigger-fifo", "NAME", "The name of the trigger (FSQ_TRIGGER)."),
)

COMMANDS: dict[str, FsqCommand] = {
    "install": FsqCommand(
        "admin:install",
        "QUEUE...",
        "Make queues.",
        "Makes each queue in the root, complete or not at all. The first error ends the list.",
        (
            HELP,
            VERBOSE,
            Flag("f", "force", "", "Remove a queue that exists, with its items, and make it again."),
            Flag("i", "ignore-exists", "", "Leave a queue that exists as it is."),
            Flag("d", "down", "", "Make it down."),
            Flag("t", "trigger", "", "Make a trigger, and with -a one for the hosts."),
            Flag("a", "add-host", "HOST", "Add a host; may be repeated."),
            OWNER,
            GROUP,
            Flag("m", "mode", "MODE", "The mode of directories, items, down file and trigger, in octal."),
        ),
    ),
    "uninstall": FsqCommand(
        "admin:uninstall",
        "QUEUE...",
        "Remove queues with all their items.",
        "Takes each queue down, then removes it. What was in it is gone.",
        (HELP, VERBOSE, Flag("f", "force", "", "A queue that doesn't exist is not an error.")),
        ours=True,
    ),
    "enqueue": FsqCommand(
        "work:enqueue",
        "QUEUE [ARGUMENT...]",
        "Put an item into a queue.",
        "The data is the standard input, up to its end, or a file. When the command has ended with 0, the item is on"
        " the disk and survives a power failure.",
        (
            HELP,
            VERBOSE,
            Flag("t", "trigger", "", "Pull the trigger afterwards."),
            Flag("e", "empty", "", "No data."),
            Flag("f", "file", "FILE", "The data is in this file."),
            Flag("", "id", "", "Print the item's name."),
            USER,
            GROUP,
            MODE,
        ),
    ),
    "scan": FsqCommand(
        "work:scan",
        "QUEUE PROGRAM [ARGUMENT...]",
        "Run a program for each waiting item.",
        "The program gets the item as its standard input, and the item's arguments after its own. Its exit code"
        " decides: FSQ_SUCCESS moves the item to done, FSQ_FAIL_TMP puts it back with one try more, anything else"
        " moves it to fail. A program that is killed by a signal ends the scan. Unless -E is given, the environment"
        " has FSQ_ITEM_ID, FSQ_ITEM_ENTROPY, FSQ_ITEM_PID, FSQ_ITEM_HOSTNAME, FSQ_ITEM_TRIES, FSQ_ITEM_ENQUEUED_AT"
        " and, for the item of a host, FSQ_ITEM_HOST.",
        (
            HELP,
            VERBOSE,
            Flag("j", "jobs", "COUNT", "Number of programs that run at the same time (default 1)."),
            Flag("w", "wait", "", "Wait for new items when there are none left, until SIGTERM or SIGINT."),
            Flag("", "rescan", "SECONDS", "With -w: maximum time between two scans (default 60)."),
            Flag("e", "env", "", "Set the variables of the item (the default)."),
            Flag("E", "no-env", "", "Don't set them."),
            Flag("k", "empty-ok", "", "No program needs to be named: the item's arguments are the command."),
            Flag("r", "max-rate", "RATE", "Maximum number of items to begin in a second; 0: no limit."),
            Flag("a", "all-hosts", "", "Scan the queues of all hosts."),
            Flag("A", "host", "HOST", "Scan the queue of this host; may be repeated."),
            *SCANNING,
        ),
    ),
    "down": FsqCommand(
        "admin:down",
        "QUEUE...",
        "Stop the scanning of queues.",
        "Items can still be enqueued. The first error ends the list.",
        (HELP, VERBOSE, USER, GROUP, MODE),
    ),
    "up": FsqCommand(
        "admin:up",
        "QUEUE...",
        "Let queues be scanned again.",
        "A queue that is up stays so. The first error ends the list.",
        (HELP, VERBOSE, Flag("d", "ignored", "TEXT", "Accepted for the sake of old scripts.")),
    ),
    "add-host": FsqCommand(
        "admin:add_host",
        "HOST QUEUE...",
        "Add a host to queues.",
        "A host is a queue within a queue: host-dist fills it.",
        (
            HELP,
            VERBOSE,
            Flag("f", "force", "", "Remove a host that exists, with its items, and make it again."),
            Flag("i", "ignore-exists", "", "Leave a host that exists as it is."),
            OWNER,
            GROUP,
            MODE,
        ),
    ),
    "rm-host": FsqCommand(
        "admin:rm_host",
        "HOST QUEUE...",
        "Remove a host from queues, with its items.",
        "The first error ends the list.",
        (HELP, VERBOSE, Flag("f", "force", "", "Go on after errors, and end with 0.")),
    ),
    "down-host": FsqCommand(
        "admin:down_host",
        "HOST QUEUE...",
        "Stop the scanning of a host.",
        "A host is not scanned while it is down, or its queue is.",
        (HELP, VERBOSE, OWNER, GROUP, MODE),
    ),
    "up-host": FsqCommand(
        "admin:up_host",
        "HOST QUEUE...",
        "Let a host be scanned again.",
        "Its queue must be up as well.",
        (HELP, VERBOSE),
    ),
    "host-dist": FsqCommand(
        "work:host_dist",
        "QUEUE [HOST...]",
        "Copy each waiting item to hosts, then it is done.",
        "To the named hosts, or to all that the queue has. An item that can't be copied to all of them is put back.",
        (
            HELP,
            VERBOSE,
            Flag("I", "link", "", "Link in place of copying: all hosts share one file, and one lock."),
            Flag("g", "trigger", "", "Pull the trigger of the hosts after each item; nobody needs to listen."),
            *SCANNING,
        ),
    ),
    "push": FsqCommand(
        "work:push",
        "URL SOURCE-QUEUE TARGET-QUEUE HOST ITEM...",
        "Send items of a host to another machine.",
        "URL is http://host:port, where `fsq jsonrpcd` listens; its token, if it asks for one, is the path, or in the"
        " variable FSQ_TOKEN. The items stay where they are: a scan around this command completes them. The data must"
        " be text.",
        (
            HELP,
            VERBOSE,
            Flag("L", "no-lock", "", "Don't take the lock: the scan around has it."),
            Flag("t", "trigger", "", "Pull the trigger there after each item."),
            Flag("i", "ignore-listener", "", "With -t: nobody needs to listen."),
            Flag("p", "protocol", "NAME", "jsonrpc, which is the only one."),
        ),
    ),
    "jsonrpcd": FsqCommand(
        "jsonrpcd:jsonrpcd",
        "[HOST] PORT",
        "Take items from other machines.",
        "Without a host it listens on 127.0.0.1. On any address that others can reach it asks for a token of 16"
        " characters or more, in the variable FSQ_TOKEN or in a file; callers send it as `Authorization: Bearer` or as"
        " the path of the URL. Nothing is encrypted. SIGHUP replaces the workers, SIGTERM ends after the requests under"
        " way.",
        (
            HELP,
            VERBOSE,
            Flag("w", "workers", "COUNT", "How many processes serve (default 5)."),
            Flag("", "token-file", "FILE", "The token is the first line of this file."),
            Flag("q", "queue", "NAME", "Take items for this queue only; may be given several times (default all)."),
            Flag("", "max-bytes", "BYTES", "The largest request (default 67108864)."),
            Flag(
                "",
                "max-total-bytes",
                "BYTES",
                "What all requests that are being received may hold together (default 536870912, and at least --workers"
                " times --max-bytes). A request beyond it is answered with 503.",
            ),
        ),
    ),
    "list": FsqCommand(
        "maintenance:list_items",
        "[QUEUE...]",
        "List queues, or the items of queues.",
        "Without a queue: the names of all queues. With queues: their items, oldest first.",
        (HELP, JSON, PLACE, HOST, Flag("", "limit", "COUNT", "Maximum number of items of each queue.")),
        ours=True,
    ),
    "show": FsqCommand(
        "maintenance:show",
        "QUEUE ITEM...",
        "Show items: what their names say, and their data.",
        "An item is found wherever it is: waiting, done, failed or still being written.",
        (HELP, JSON, HOST, Flag("", "data", "", "Print the data alone, byte for byte.")),
        ours=True,
    ),
    "stats": FsqCommand(
        "maintenance:stats",
        "[QUEUE...]",
        "Print the counts and the state of queues.",
        "Of all queues if none is named.",
        (HELP, JSON, HOST),
        ours=True,
    ),
    "redrive": FsqCommand(
        "maintenance:redrive",
        "QUEUE [ITEM...]",
        "Put failed items back into the queue.",
        "The named ones, or all with --all. Their tries begin at 0 again, their time stays.",
        (
            HELP,
            VERBOSE,
            JSON,
            HOST,
            Flag("", "all", "", "All items of the place."),
            Flag("p", "place", "PLACE", "From where: fail (the default) or done."),
            Flag("", "keep-tries", "", "Keep the tries."),
        ),
        ours=True,
    ),
    "purge": FsqCommand(
        "maintenance:purge",
        "QUEUE...",
        "Remove old items.",
        "From done, unless another place is named. An item that is being worked on is not removed.",
        (
            HELP,
            JSON,
            HOST,
            Flag("p", "place", "PLACE", "From where: done (the default), fail or queue."),
            Flag("", "older-than", "AGE", "Enqueued longer ago than this, as in 90s, 30m, 12h, 7d. Must be given."),
            Flag("", "dry-run", "", "Only count."),
        ),
        ours=True,
    ),
    "audit": FsqCommand(
        "maintenance:audit",
        "[QUEUE...]",
        "Find what crashes have left behind.",
        "Litter in tmp, items that are half linked or half completed, names that can't be read, wrong modes, items that"
        " workers of the queue library have kept beyond their lease. Nothing is changed. Of all queues if none is"
        " named. Ends with 111 if there is anything.",
        (
            HELP,
            JSON,
            Flag("", "older-than", "AGE", "Files in tmp that have not changed for this time are litter (default 1h)."),
        ),
        ours=True,
    ),
    "repair": FsqCommand(
        "maintenance:repair",
        "QUEUE...",
        "Put right what audit finds.",
        "The exit code is 111 if something is left that must be repaired by hand.",
        (
            HELP,
            JSON,
            Flag("", "older-than", "AGE", "Files in tmp that have not changed for this time are litter (default 1h)."),
        ),
        ours=True,
    ),
}
