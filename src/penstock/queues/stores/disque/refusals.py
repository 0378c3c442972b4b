"""What a node's refusals mean to the caller of a queue."""

from penstock.errors import AuthenticationError, OutcomeUnknown, PenstockError, ReplyError, StoreError

# An add that found too few nodes in time: they were told to forget the job, but one that could not be reached may have
# it, and deliver it.
_IN_DOUBT = ("NOREPL Timeout", "NOREPL job removed")

# What somebody can do about a refusal, by its code.
_ADVICE = {
    "NOREPL": "Let workers end more jobs, start the nodes that are missing, or ask for fewer copies with `replicate`.",
    "OOM": "Raise the node's maxmemory, or let workers end more jobs.",
    "PAUSED": "The queue takes no jobs in: somebody has sent PAUSE with `in` or `all`.",
}


def too_few_nodes(problem: ReplyError, url: str, copies: int, reachable: int, nodes: int) -> PenstockError:
    """Return the error of an add for which fewer nodes than copies can be reached."""
    text = (
        f"{url} refused: {problem}. {copies} copies were asked for, and {reachable} of {nodes} nodes can be reached. "
        "Start the others, remove those that won't come back (`penstock cluster forget`), or ask for fewer copies: "
        f"replicate={max(1, reachable)}"
    )
    if str(problem).startswith(_IN_DOUBT):
        return OutcomeUnknown(f"{text}. The job may be there all the same.")
    return StoreError(text)


def as_told(problem: BaseException | None, url: str) -> PenstockError | None:
    """The error that a caller sees in place of a node's error reply; None for all others, which stay as they are."""
    if not isinstance(problem, ReplyError) or isinstance(problem, AuthenticationError):
        return None
    text = f"{url} refused: {problem}"
    if str(problem).startswith(_IN_DOUBT):
        return OutcomeUnknown(f"{text}. The job may be there all the same. {_ADVICE['NOREPL']}")
    advice = _ADVICE.get(problem.code)
    return StoreError(f"{text}. {advice}" if advice else text)
