"""All errors of Penstock, in one tree, by who must act.

    PenstockError
    ├── CallerError             the code or the person that called: change the arguments
    │   ├── BadUrl                a store's URL that can't be understood
    │   ├── BadPayload            a payload or headers that can't be stored
    │   ├── BadRecipe             a recipe of a pipeline that can't be run; `problems` has one text for each mistake
    │   ├── Unsupported           a store lacks a capability, which the error names
    │   ├── LeaseLost             the job is no longer this worker's, and nothing was changed
    │   └── WaitCancelled         somebody cancelled the wait, or drained the queue
    ├── OperatorError           whoever runs the node: configuration, disk, memory
    │   ├── ConfigError           a directive that is unknown, or has an invalid value
    │   ├── JournalError          the journal can't be read, written or trusted
    │   ├── MissingExtra          a package isn't installed; the error says which extra brings it
    │   └── StoreError            a store's server refused: disk, memory, rights, a table that is not as it should be
    └── PeerError               the other end of a connection
        ├── ConnectionLost        there is no link, or it broke: what was sent may or may not have been done
        │   ├── TimedOut            no answer in time; the link is closed, as a late one could be mistaken
        │   └── Unreachable         no node of the cluster took the command in time; what each said is in `said`
        ├── OutcomeUnknown        the link broke under what must not be done twice: the caller decides
        ├── PartlyAdded           some of many jobs were added, then something failed: see `ids` and the cause
        ├── TaskFailed            a task that a worker ran has failed for good; its `traceback` has the last lines
        │   └── TaskCancelled       somebody cancelled it
        ├── BadReply              what came back isn't RESP: most likely no Penstock listens there
        └── ReplyError            the server answered `-CODE text`
            └── AuthenticationError   the password is missing or wrong

Catch the first level to decide who must act; catch a leaf to handle it. The texts are for people:
each names what was wrong, where, and what to do.
"""


class PenstockError(Exception):
    """The root: everything that Penstock raises on purpose."""


class CallerError(PenstockError):
    """The arguments were wrong. Nothing was done."""


class BadUrl(CallerError):
    """A store's URL that can't be understood."""


class BadPayload(CallerError):
    """A payload or headers that can't be stored."""


class BadRecipe(CallerError):
    """A recipe of a pipeline is wrong. `problems` has one text for each mistake, with the path of its key."""

    def __init__(self, text: str, problems: list[str] | None = None) -> None:
        super().__init__(text)
        self.problems = problems or [text]


class Unsupported(CallerError):
    """The store can't do this. `capability` names what it lacks."""

    def __init__(self, text: str, capability: str) -> None:
        super().__init__(text)
        self.capability = capability


class LeaseLost(CallerError):
    """The lease is over: the job went to another worker, was ended, or its time ran out. Nothing was changed."""


class WaitCancelled(CallerError):
    """The wait for a job was cancelled by `cancel` or `drain`. No job was taken."""


class OperatorError(PenstockError):
    """The node can't do its work until somebody changes its configuration, its disk or its memory."""


class ConfigError(OperatorError):
    """A configuration that the node can't start or go on with."""


class JournalError(OperatorError):
    """The journal can't be read, can't be written, or holds what no node has written."""


class MissingExtra(OperatorError):
    """A store needs a package that isn't installed."""


class StoreError(OperatorError):
    """The store's server answered with an error that somebody must look into. Nothing was done."""


class PeerError(PenstockError):
    """The other end of a connection failed, or refused."""


class ConnectionLost(PeerError):
    """There is no link. A command under way may have been done: repeat only what may be done twice."""


class TimedOut(ConnectionLost):
    """The other end said nothing for too long."""


class Unreachable(ConnectionLost):
    """No node of the cluster took the command in time. `said` has each node that was asked, and its last word."""

    def __init__(self, text: str, said: dict[str, str] | None = None) -> None:
        super().__init__(text)
        self.said = dict(said or {})


class OutcomeUnknown(PeerError):
    """The link broke after something was sent that must not be done twice, an add above all.

    It is not a ConnectionLost, so that code which repeats after one of those doesn't repeat this.
    """


class PartlyAdded(PeerError):
    """Some of many jobs were added, then something failed, which is the `__cause__`.

    `ids` has an entry for each body, in their order: the id, or None where none was answered. If the cause is
    OutcomeUnknown, a None may have been added.
    """

    def __init__(self, text: str, ids: list[str | None]) -> None:
        super().__init__(text)
        self.ids = ids


class TaskFailed(PeerError):
    """A call of a task went to the dead letters. Its text is the task's error."""

    def __init__(self, text: str, traceback: str = "") -> None:
        super().__init__(text)
        self.traceback = traceback


class TaskCancelled(TaskFailed):
    """A call of a task, or a workflow, was cancelled by its handle."""


class BadReply(PeerError):
    """The other end doesn't speak RESP; to connect again wouldn't help."""


class ReplyError(PeerError):
    """The server's `-CODE text`. As a string it is what the server sent, without the dash."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.code, _, self.message = text.partition(" ")


class AuthenticationError(ReplyError):
    """The server wants a password, or another one."""


def printable(text: str) -> str:
    """Return a text with control characters escaped, as errors and logs show it: it can't control a terminal."""
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)
