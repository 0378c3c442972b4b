"""Calls of tasks for the type checker: lines that end in `# error` must be refused, the others accepted."""

from pathlib import Path

import penstock
from penstock import chain, group
from penstock.tasks import FailedCall

app = penstock.App("memory:")


@app.task(queue="mail")
async def welcome(user_id: int, note: str = "") -> str:
    return f"{user_id}{note}"


@app.task
def transcode(path: Path) -> float:
    return 1.5


@app.task
async def shout(text: str, times: int = 1) -> bytes:
    return text.upper().encode() * times


@app.task
async def join(texts: list[str]) -> str:
    return "".join(texts)


@app.task
async def alert(failed: FailedCall, who: str) -> None:
    assert failed.error
    assert who


@app.cron("0 3 * * *")
async def nightly() -> None: ...


async def right_workflows() -> None:
    pair = chain(welcome.call(1), shout.call())
    loud: bytes = await (await pair.push()).result()
    loud = pair.blocking.push().result()
    loud = await (await welcome.call(1).then(shout.step(times=2)).push()).result()
    await chain(welcome.call(1), transcode.call(Path("a")), welcome.options(delay=5).call(2)).push()
    members = group([welcome.call(n) for n in range(3)])
    texts: list[str] = await (await members.push()).result()
    text: str = await (await members.then(join.call()).push()).result()
    text = await (
        await chain(welcome.call(1), group([chain(shout.call(), welcome.call(2))]), join.call()).push()
    ).result()
    await chain(welcome.call(1), on_failure=alert.step("ann")).push()
    await welcome.options(on_failure=alert.step(who="ann")).push(1)
    assert loud or texts or text


async def wrong_workflows() -> None:
    chain(welcome.call(1), join.call())  # error
    chain(transcode.call(Path("a")), shout.call())  # error
    welcome.call(1).then(join.call())  # error
    group([welcome.call(1)]).then(shout.call())  # error
    group([transcode.call(Path("a"))]).then(join.call())  # error
    await shout.call().push()  # error
    await chain(shout.call(), join.step()).push()  # error
    await group([shout.call()]).push()  # error
    shout.step("x")  # error
    shout.step(text="x")  # error
    shout.call(times=2)  # error
    chain(welcome.call(1), on_failure=shout.call())  # error
    chain(welcome)  # error
    number: int = await (await chain(welcome.call(1), shout.call()).push()).result()  # error
    assert number


async def right() -> None:
    await welcome.push(42, note="x")
    await welcome.options(delay=60).push(42)
    await app.push_many([welcome.call(1), welcome.options(queue="other").call(2)])
    welcome.blocking.push(42)
    transcode.blocking.push(Path("a"))
    handle = await transcode.options(delay=60, unique="video:a").push(Path("a"))
    seconds: float = await handle.result(timeout=600)
    text: str = welcome.blocking.push(42).result()
    text = await app.handle(handle.id, welcome).result()
    await nightly.push()
    assert seconds or text
    first: str = await welcome(42)
    second: float = transcode(Path("a"))
    assert first or second


async def wrong() -> None:
    await welcome.push("42")  # error
    await welcome.push()  # error
    await welcome.push(42, since=1)  # error
    await welcome.options(delay=60).push("42")  # error
    welcome.call("42")  # error
    welcome.blocking.push(None)  # error
    transcode.blocking.push("a")  # error
    transcode.options().blocking.push(5)  # error
    transcode("a")  # error
    result: str = await (await transcode.push(Path("a"))).result()  # error
    result = transcode.blocking.push(Path("a")).result()  # error
    result = await app.handle("id", transcode).result()  # error
    await nightly.push(1)  # error
    welcome.options(delay="soon")  # error
    welcome.options(countdown=60)  # error
    app.task(max_tries="5")  # error
    app.task(autoretry_for=OSError)  # error
    app.task(priority=5)  # error
    assert result
    number: int = await welcome(42)  # error
    assert number
