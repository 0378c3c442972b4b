"""Enqueueing from every source, and what is left when it fails."""

from __future__ import annotations

import errno
import io
import os
import socket
import stat
import threading
from pathlib import Path

import pytest

from penstock import fsq
from penstock.fsq import files, names
from tests.fsq import programs


def content(queue: str, name: str) -> bytes:
    return Path(fsq.path.item(queue, name)).read_bytes()


def test_an_item_is_there_with_its_data_and_arguments(root: Path, queue: str) -> None:
    name = fsq.senqueue(queue, "grüße", "ann", 5, b"caf\xc3\xa9")
    assert content(queue, name) == "grüße".encode()
    assert names.parse(name).arguments == ("ann", "5", "café")
    assert os.listdir(root / "mail/tmp") == []


def test_every_kind_of_source_works(root: Path, queue: str, tmp_path: Path) -> None:
    path = tmp_path / "letter"
    path.write_bytes(b"x" * 200_000)
    read, write = os.pipe()
    left, right = socket.socketpair()
    os.write(write, b"through a pipe")
    os.close(write)
    right.sendall(b"through a socket")
    right.close()
    os.set_blocking(read, False)
    with path.open("rb") as file, left:
        sources = [str(path), path, file, io.BytesIO(b"a\nb"), io.StringIO("c\nd"), read, left]
        made = [content(queue, fsq.enqueue(queue, source, "arg")) for source in sources]
        assert not file.closed
    os.close(read)
    whole = b"x" * 200_000
    assert made == [whole, whole, whole, b"a\nb", b"c\nd", b"through a pipe", b"through a socket"]


def test_a_source_that_comes_slowly_is_waited_for(queue: str) -> None:
    read, write = os.pipe()
    os.set_blocking(read, False)
    writer = threading.Timer(0.05, lambda: (os.write(write, b"late"), os.close(write)))
    writer.start()
    assert content(queue, fsq.enqueue(queue, read)) == b"late"
    writer.join()
    os.close(read)


@pytest.mark.parametrize("source", ["/no/such/file", 9999])
def test_a_source_that_can_not_be_read_is_an_error(root: Path, queue: str, source: str | int) -> None:
    with pytest.raises(fsq.FSQEnqueueError) as caught:
        fsq.enqueue(queue, source)
    assert caught.value.errno in (errno.ENOENT, errno.EBADF)
    assert os.listdir(root / "mail/tmp") == []


def test_what_is_no_source_and_no_data_is_refused(queue: str) -> None:
    with pytest.raises(TypeError):
        fsq.enqueue(queue, object())  # type: ignore[arg-type]  # that is the mistake
    with pytest.raises(TypeError):
        fsq.senqueue(queue, 5)  # type: ignore[arg-type]  # that is the mistake
    with pytest.raises(fsq.FSQCoerceError):
        fsq.senqueue(queue, "é", charset="ascii")


def test_the_mode_is_under_the_umask(queue: str) -> None:
    before = os.umask(0o027)
    try:
        modes = [fsq.senqueue(queue, "", mode=mode) for mode in (None, 0o666, "0600")]
    finally:
        os.umask(before)
    found = [stat.S_IMODE(os.stat(fsq.path.item(queue, name)).st_mode) for name in modes]
    assert found == [0o640, 0o640, 0o600]


def test_the_owner_is_set(queue: str) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can give files away")
    name = fsq.senqueue(queue, "", user=65534, group="root")
    assert os.stat(fsq.path.item(queue, name)).st_uid == 65534


@pytest.mark.parametrize("argument", ["\0", "a\udcff", "x" * 300])
def test_a_name_that_could_not_be_read_is_never_made(root: Path, queue: str, argument: str) -> None:
    with pytest.raises(fsq.FSQError) as caught:
        fsq.senqueue(queue, "x", argument)
    assert caught.value.errno in (errno.EINVAL, errno.ENAMETOOLONG)
    assert os.listdir(root / "mail/tmp") == os.listdir(root / "mail/queue") == []


def test_a_taken_name_is_passed_over(root: Path, queue: str) -> None:
    fsq.set_const("FSQ_TIMEFMT", "2026")
    first = fsq.senqueue(queue, "first")
    fields = first.split("_")
    for place, ahead in (("tmp", 1), ("queue", 2)):
        fields[2] = str(int(first.split("_")[2]) + ahead)
        (root / "mail" / place / "_".join(fields)).write_bytes(b"others")
    name = fsq.senqueue(queue, "mine")
    assert content(queue, name) == b"mine"
    assert (root / "mail/queue" / "_".join(fields)).read_bytes() == b"others"
    assert len(os.listdir(root / "mail/queue")) == 3


def test_threads_and_children_never_make_one_name_twice(root: Path, queue: str) -> None:
    threads = [threading.Thread(target=lambda: [fsq.senqueue(queue, "x") for _ in range(50)]) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(os.listdir(root / "mail/queue")) == 400


def test_ten_processes_make_a_hundred_items(root: Path, queue: str) -> None:
    program = "from penstock import fsq\nfor number in range(10): fsq.senqueue('mail', str(number), number)"
    children = [programs.start_python(program) for _ in range(10)]
    assert [child.wait(programs.SECONDS_MAX) for child in children] == [0] * 10
    assert len(os.listdir(root / "mail/queue")) == 100


def test_enqueueing_ignores_down(queue: str) -> None:
    fsq.down(queue)
    assert fsq.senqueue(queue, "x")


def test_an_absent_queue_is_an_error(root: Path) -> None:
    with pytest.raises(fsq.FSQEnqueueError) as caught:
        fsq.senqueue("absent", "x")
    assert caught.value.errno == errno.ENOENT


def test_many_items_share_one_sync_of_the_directory(root: Path, queue: str, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    monkeypatch.setattr(files.disk, "sync_directory", synced.append)
    made = fsq.enqueue_many(queue, [(f"item {number}", [number]) for number in range(20)])
    assert synced == [f"{root}/mail/queue"]
    assert [content(queue, name) for name in made] == [f"item {number}".encode() for number in range(20)]
    assert fsq.enqueue_many(queue, []) == []


def test_of_many_items_none_is_enqueued_if_one_can_not_be(root: Path, queue: str) -> None:
    with pytest.raises(fsq.FSQEnqueueError):
        fsq.enqueue_many(queue, [("fine", []), ("too long", ["x" * 300])])
    assert os.listdir(root / "mail/queue") == os.listdir(root / "mail/tmp") == []


def test_an_item_can_be_written_bit_by_bit(root: Path, queue: str) -> None:
    with fsq.NewItem(queue, ["arg"]) as item:
        item.write(b"one ")
        item.write(b"two")
        assert os.listdir(root / "mail/queue") == []
        item.commit()
    assert content(queue, item.name) == b"one two"
    with pytest.raises(ValueError, match="finished"):
        item.write(b"more")
    with fsq.NewItem(queue) as dropped:
        dropped.write(b"never seen")
    assert os.listdir(root / "mail/tmp") == []
    assert len(os.listdir(root / "mail/queue")) == 1


@pytest.mark.parametrize("step", ["write", "sync", "link"])
def test_a_full_disk_leaves_nothing_and_says_so(
    root: Path, queue: str, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*words: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    waiting = fsq.senqueue(queue, "before")
    monkeypatch.setattr(files.disk, step, full)
    for call in (lambda: fsq.senqueue(queue, "x"), lambda: fsq.enqueue_many(queue, [("x", []), ("y", [])])):
        with pytest.raises(fsq.FSQEnqueueError, match="cannot enqueue into mail: No space left on device"):
            call()
    assert os.listdir(root / "mail/tmp") == []
    assert os.listdir(root / "mail/queue") == [waiting]


def test_a_sync_that_fails_is_reported_although_the_item_is_there(
    root: Path, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(path: str) -> None:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(files.disk, "sync_directory", broken)
    with pytest.raises(fsq.FSQEnqueueError, match="a power failure may take it away"):
        fsq.senqueue(queue, "x")
    assert len(os.listdir(root / "mail/queue")) == 1
    assert os.listdir(root / "mail/tmp") == []
