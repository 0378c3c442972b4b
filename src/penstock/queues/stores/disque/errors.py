"""The errors that callers of a queue see in place of a node's error replies."""

from penstock.errors import AuthenticationError, OutcomeUnknown, PenstockError, ReplyError, StoreError

# An add that found too few nodes in time: they were asked to delete the job, but one that could not be reached may have
# it, and deliver it.
_IN_DOUBT = ("NOREPL Timeout", "NOREPL job removed")

# What to do about an error reply, by its code.
_ADVICE = {
    "NOREPL": "Let workers end more jobs, start the nodes that are missing, or ask for fewer copies with `replicate`.",
    "OOM": "Raise the node's maxmemory, or let workers end more jobs.",
    "PAUSED": "The queue takes no jobs in: PAUSE was sent with `in` or `all`.",
}


def too_few_nodes(problem: ReplyError, url: str, copies: int, reachable: int, nodes: int) -> PenstockError:
    """Return the error of an add for which fewer nodes than copies can be reached."""
    text = (
        f"{url} refused: {problem}. {copies} copies were asked for, and {reachable} of {nodes} nodes can be reached. "
        "Start the others, remove those that won't come back (`penstock cluster forget`), or ask for fewer copies: "
        f"replicate={max(1, reachable)}"
    )
    if str(problem).startswith(_IN_DOUBT):
        return OutcomeUnknown(f"{text}. The job may have been added all the same.")
    return StoreError(text)


def store_error(problem: BaseException | None, url: str) -> PenstockError | None:
    """Return the error that a caller sees in place of an error reply; None for other errors, which stay as they are."""
    if not isinstance(problem, ReplyError) or isinstance(problem, AuthenticationError):
        return None
    text = f"{url} refused: {problem}"
    if str(problem).startswith(_IN_DOUBT):
        return OutcomeUnknown(f"{text}. The job may have been added all the same. {_ADVICE['NOREPL']}")
    advice = _ADVICE.get(problem.code)
    return StoreError(f"{text}. {advice}" if advice else text)
