"""Queues, hosts, down files and triggers: what is made, with which modes and owners."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path

import pytest

from penstock import fsq


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.fixture(autouse=True)
def umask() -> object:
    """A strict umask, so that a forgotten chmod shows."""
    before = os.umask(0o077)
    yield
    os.umask(before)


def test_a_queue_is_four_directories_with_the_exact_mode(root: Path) -> None:
    fsq.install("mail")
    assert sorted(os.listdir(root / "mail")) == ["done", "fail", "queue", "tmp"]
    assert {mode(path) for path in [root / "mail", *(root / "mail").iterdir()]} == {0o2770}
    assert os.listdir(root) == ["mail"]


def test_everything_can_be_asked_for(root: Path) -> None:
    fsq.install("mail", is_down=True, is_triggered=True, mode=0o2755, item_mode="0644", hosts=["a", "b"])
    assert sorted(os.listdir(root / "mail")) == ["done", "down", "fail", "hosts", "queue", "tmp", "trigger-s"]
    assert (mode(root / "mail"), mode(root / "mail/trigger-s")) == (0o2755, 0o644)
    assert stat.S_ISFIFO((root / "mail/trigger-s").stat().st_mode)
    assert fsq.hosts("mail") == ("a", "b")
    assert sorted(os.listdir(root / "mail/hosts/a")) == ["done", "down", "fail", "queue", "tmp"]
    assert fsq.host_is_down("mail", "a")


def test_the_trigger_of_hosts_has_the_mode_of_the_queue(root: Path) -> None:
    fsq.install("mail", hosts=[], is_host_triggered=True)
    assert mode(root / "mail/hosts-trigger-s") == 0o2770
    fsq.host_untrigger("mail")
    fsq.host_trigger("mail")
    assert mode(root / "mail/hosts-trigger-s") == 0o640


def test_owners_are_set_by_number_or_name(root: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can give files away")
    fsq.install("mail", user=65534, group="65534", is_down=True, item_user="root", item_group=65534)
    assert ((root / "mail").stat().st_uid, (root / "mail/tmp").stat().st_gid) == (65534, 65534)
    assert mode(root / "mail") == 0o2770
    assert ((root / "mail/down").stat().st_uid, (root / "mail/down").stat().st_gid) == (0, 65534)


def test_an_unknown_owner_leaves_nothing_behind(root: Path) -> None:
    for options in ({"user": "nobody-at-all"}, {"item_group": "nobody-at-all"}):
        with pytest.raises(fsq.FSQEnvError):
            fsq.install("mail", **options)
    with pytest.raises(TypeError):
        fsq.install("mail", user=1.5)
    with pytest.raises(TypeError):
        fsq.install("mail", mode=1.5)
    assert os.listdir(root) == []


def test_a_queue_that_is_there_is_left_alone(root: Path, queue: str) -> None:
    name = fsq.senqueue(queue, "x")
    with pytest.raises(fsq.FSQInstallError) as caught:
        fsq.install(queue)
    assert (caught.value.errno, caught.value.strerror) == (errno.ENOTEMPTY, "queue exists: mail")
    assert os.listdir(root / "mail/queue") == [name]
    assert os.listdir(root) == ["mail"]


def test_an_empty_directory_is_replaced_and_a_file_is_not(root: Path) -> None:
    (root / "mail").mkdir()
    fsq.install("mail")
    (root / "plain").touch()
    with pytest.raises(fsq.FSQInstallError) as caught:
        fsq.install("plain")
    assert caught.value.errno == errno.ENOTDIR
    assert sorted(os.listdir(root)) == ["mail", "plain"]


def test_an_absent_root_is_an_error(root: Path) -> None:
    fsq.set_const("FSQ_ROOT", str(root / "absent"))
    for call in (lambda: fsq.install("mail"), lambda: fsq.uninstall("mail")):
        with pytest.raises(fsq.FSQInstallError) as caught:
            call()
        assert caught.value.errno == errno.ENOENT
    with pytest.raises(fsq.FSQPathError):
        fsq.queues()


def test_hosts_are_a_list(queue: str) -> None:
    with pytest.raises(TypeError):
        fsq.install("other", hosts="abc")
    with pytest.raises(fsq.FSQHostsError) as caught:
        fsq.hosts(queue)
    assert caught.value.errno == errno.ENOENT
    fsq.install_host(queue)
    assert fsq.hosts(queue) == ()


def test_a_host_can_be_added_where_none_is_left(root: Path, queue: str) -> None:
    fsq.install_host(queue, "a")
    fsq.uninstall_host(queue, "a")
    fsq.install_host(queue, "b", is_down=True)
    assert fsq.hosts(queue) == ("b",)
    with pytest.raises(fsq.FSQInstallError) as caught:
        fsq.install_host(queue, "b")
    assert caught.value.errno == errno.ENOTEMPTY
    with pytest.raises(fsq.FSQInstallError) as caught:
        fsq.uninstall_host(queue, "a")
    assert caught.value.errno == errno.ENOENT


def test_what_is_being_made_is_no_queue_and_no_host(root: Path, queue: str) -> None:
    fsq.install_host(queue, "a")
    (root / ".mail123").mkdir()
    (root / "mail/hosts/.b456").mkdir()
    (root / "notes").touch()
    assert fsq.queues() == ("mail",)
    assert fsq.hosts(queue) == ("a",)


def test_a_queue_goes_with_everything_in_it(root: Path, queue: str) -> None:
    fsq.senqueue(queue, "x")
    fsq.uninstall(queue)
    assert os.listdir(root) == []
    with pytest.raises(fsq.FSQInstallError) as caught:
        fsq.uninstall(queue)
    assert caught.value.errno == errno.ENOENT


def test_a_long_name_can_be_installed(root: Path) -> None:
    fsq.install("q" * 255)
    assert os.listdir(root) == ["q" * 255]


def test_down_and_up_can_be_repeated(root: Path, queue: str) -> None:
    fsq.down(queue)
    assert mode(root / "mail/down") == 0o600, "the umask applies to a fresh one"
    fsq.down(queue, mode=0o644)
    assert mode(root / "mail/down") == 0o644, "and not to one that is there"
    assert fsq.is_down(queue)
    for _ in range(2):
        fsq.up(queue)
        assert not fsq.is_down(queue)


def test_a_down_file_may_be_anything_but_a_dangling_link(root: Path, queue: str) -> None:
    (root / "mail/down").symlink_to("nowhere")
    assert not fsq.is_down(queue)
    (root / "mail/down").unlink()
    (root / "mail/down").mkdir()
    assert fsq.is_down(queue)


@pytest.mark.parametrize("call", [fsq.up, fsq.down, fsq.is_down, fsq.trigger, fsq.untrigger, fsq.trigger_pull])
def test_a_queue_that_is_not_there_is_a_matter_of_configuration(call: object) -> None:
    with pytest.raises(fsq.FSQConfigError) as caught:
        call("absent")  # type: ignore[operator]  # each of them takes a queue
    assert caught.value.errno == errno.ENOENT


def test_a_failed_chown_leaves_no_down_file(root: Path, queue: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*words: object) -> None:
        raise PermissionError(errno.EPERM, "no")

    monkeypatch.setattr(os, "fchown", refuse)
    with pytest.raises(fsq.FSQConfigError):
        fsq.down(queue, user=1)
    assert not fsq.is_down(queue)


def test_a_pull_is_one_byte(root: Path, queue: str) -> None:
    fsq.trigger(queue)
    assert mode(root / "mail/trigger-s") == 0o640
    with pytest.raises(fsq.FSQTriggerPullError) as caught:
        fsq.trigger_pull(queue)
    assert caught.value.errno == errno.ENXIO
    fsq.trigger_pull(queue, ignore_listener=True)
    fd = os.open(root / "mail/trigger-s", os.O_RDONLY | os.O_NONBLOCK)
    try:
        fsq.trigger_pull(queue)
        assert os.read(fd, 10) == b"\0"
    finally:
        os.close(fd)


def test_a_full_trigger_is_as_good_as_a_pulled_one(root: Path, queue: str) -> None:
    fsq.trigger(queue)
    fd = os.open(root / "mail/trigger-s", os.O_RDWR | os.O_NONBLOCK)
    try:
        with contextlib.suppress(BlockingIOError):
            while os.write(fd, bytes(4096)):
                pass
        fsq.trigger_pull(queue)
    finally:
        os.close(fd)


def test_only_a_trigger_can_be_pulled(root: Path, queue: str) -> None:
    fsq.down(queue)
    with pytest.raises(fsq.FSQTriggerPullError):
        fsq.trigger_pull(queue, trigger="down")
    assert (root / "mail/down").read_bytes() == b""
    with pytest.raises(fsq.FSQTriggerPullError) as caught:
        fsq.trigger_pull(queue, ignore_listener=True)
    assert caught.value.errno == errno.ENOENT
    with pytest.raises(fsq.FSQConfigError):
        fsq.trigger(queue, trigger="down")


def test_a_trigger_comes_unasked_where_the_settings_say_so(root: Path) -> None:
    fsq.set_const("FSQ_USE_TRIGGER", 1)
    fsq.install("mail")
    assert stat.S_ISFIFO((root / "mail/trigger-s").stat().st_mode)
    fsq.untrigger("mail")
    fsq.untrigger("mail")
    assert not (root / "mail/trigger-s").exists()
