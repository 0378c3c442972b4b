"""Settings: from the environment, by name, and changed while a program runs."""

from __future__ import annotations

import errno
import sys
import threading
from pathlib import Path

import pytest

from penstock import fsq
from penstock.fsq import constants
from tests.fsq import programs


def test_defaults_are_those_of_the_original() -> None:
    constants.load({})
    assert {name: fsq.const(name) for name in constants.SETTINGS} == {
        "FSQ_ROOT": "/var/fsq",
        "FSQ_CHARSET": "utf8",
        "FSQ_DELIMITER": "_",
        "FSQ_ENCODE": "%",
        "FSQ_TIMEFMT": "%Y%m%d%H%M%S",
        "FSQ_QUEUE": "queue",
        "FSQ_DONE": "done",
        "FSQ_FAIL": "fail",
        "FSQ_TMP": "tmp",
        "FSQ_DOWN": "down",
        "FSQ_TRIGGER": "trigger-s",
        "FSQ_HOSTS": "hosts",
        "FSQ_HOSTS_TRIGGER": "hosts-trigger-s",
        "FSQ_ITEM_USER": None,
        "FSQ_ITEM_GROUP": None,
        "FSQ_QUEUE_USER": None,
        "FSQ_QUEUE_GROUP": None,
        "FSQ_ITEM_MODE": 0o640,
        "FSQ_QUEUE_MODE": 0o2770,
        "FSQ_SUCCESS": 0,
        "FSQ_FAIL_TMP": 111,
        "FSQ_FAIL_PERM": 100,
        "FSQ_MAX_TRIES": 1,
        "FSQ_TTL": 0,
        "FSQ_LOCK": 1,
        "FSQ_USE_TRIGGER": 0,
        "FSQ_EXEC_DIR": None,
        "FSQ_SYNC": 1,
    }


def test_the_environment_is_obeyed() -> None:
    constants.load({"FSQ_ROOT": "/elsewhere", "FSQ_ITEM_MODE": "00600", "FSQ_TTL": "60", "FSQ_ITEM_USER": ""})
    assert fsq.const("FSQ_ROOT") == constants.FSQ_ROOT == "/elsewhere"
    assert (fsq.const("FSQ_ITEM_MODE"), fsq.const("FSQ_TTL"), fsq.const("FSQ_ITEM_USER")) == (0o600, 60, None)


@pytest.mark.parametrize(
    ("name", "value", "stored"),
    [
        ("FSQ_ITEM_MODE", "0600", 0o600),
        ("FSQ_ITEM_MODE", 0o600, 0o600),
        ("FSQ_TTL", "7", 7),
        ("FSQ_LOCK", False, 0),
        ("FSQ_ROOT", b"/x", "/x"),
        ("FSQ_QUEUE", "wärteschlange", "wärteschlange"),
        ("FSQ_ITEM_USER", 0, 0),
        ("FSQ_CHARSET", "latin-1", "latin-1"),
    ],
)
def test_a_value_is_converted(name: str, value: object, stored: object) -> None:
    assert fsq.set_const(name, value) == stored == fsq.const(name)


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("FSQ_ITEM_MODE", "9", fsq.FSQEnvError),
        ("FSQ_TTL", "soon", fsq.FSQEnvError),
        ("FSQ_TTL", None, fsq.FSQEnvError),
        ("FSQ_CHARSET", "no such", fsq.FSQEnvError),
        ("FSQ_ROOT", None, fsq.FSQCoerceError),
    ],
)
def test_a_value_that_can_not_be_changes_nothing(name: str, value: object, error: type[fsq.FSQError]) -> None:
    before = fsq.const(name)
    with pytest.raises(error):
        fsq.set_const(name, value)
    assert fsq.const(name) == before


def test_unknown_names_are_distinguished_by_their_errno() -> None:
    with pytest.raises(fsq.FSQEnvError) as caught:
        fsq.const("FSQ_NONSENSE")
    assert caught.value.errno == errno.EINVAL
    with pytest.raises(fsq.FSQEnvError) as caught:
        fsq.set_const("FSQ_NONSENSE", 1)
    assert caught.value.errno == errno.ENOENT
    with pytest.raises(TypeError):
        fsq.const(1)  # type: ignore[arg-type]  # that is the mistake


def test_a_bad_setting_is_reported_without_a_traceback() -> None:
    done = programs.run("list", settings={"FSQ_TTL": "soon"})
    assert done.returncode == 111
    assert b"invalid value for FSQ_TTL: 'soon'" in done.stderr
    assert b"Traceback" not in done.stderr


def test_a_new_root_counts_at_once(root: Path) -> None:
    fsq.set_const("FSQ_ROOT", str(root / "other"))
    assert fsq.path.base("q") == f"{root}/other/q"
    fsq.set_const("FSQ_TRIGGER", "bell")
    assert fsq.path.trigger("q") == f"{root}/other/q/bell"


def test_the_original_name_has_the_same_things() -> None:
    from fsq.path import base

    import fsq as original

    assert original.__all__ == fsq.__all__
    assert all(getattr(original, name) is getattr(fsq, name) for name in fsq.__all__)
    assert base is fsq.path.base
    assert sys.modules["fsq.constants"] is constants


def test_what_is_public_is_what_is_listed() -> None:
    import types

    modules = {"constants", "path", "remote"}
    public = {
        name
        for name, value in vars(fsq).items()
        if not name.startswith("_") and (not isinstance(value, types.ModuleType) or name in modules)
    }
    assert public == set(fsq.__all__)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\0b", "/"])
def test_a_name_that_leads_elsewhere_is_refused(name: str) -> None:
    for build in (fsq.path.base, fsq.path.queue, fsq.path.down, lambda queue: fsq.path.item("q", queue)):
        with pytest.raises(fsq.FSQPathError):
            build(name)
    with pytest.raises(fsq.FSQPathError):
        fsq.path.base("q", name)
    with pytest.raises(fsq.FSQPathError):
        fsq.path.trigger("q", name)
    fsq.set_const("FSQ_QUEUE", name)
    with pytest.raises(fsq.FSQPathError):
        fsq.path.queue("q")


def test_paths_take_numbers_for_names(root: Path) -> None:
    assert fsq.path.item(1, 2.5, 3) == f"{root}/1/hosts/3/queue/2.5"


def test_a_block_may_have_settings_of_its_own(root: Path) -> None:
    seen = []
    with constants.using(FSQ_ROOT="/elsewhere", FSQ_ITEM_MODE="600"):
        thread = threading.Thread(target=lambda: seen.append(fsq.const("FSQ_ROOT")))
        thread.start()
        thread.join()
        with constants.using(FSQ_ROOT="/inner"):
            assert (constants.FSQ_ROOT, fsq.path.base("q"), fsq.const("FSQ_ITEM_MODE")) == ("/inner", "/inner/q", 0o600)
        assert constants.text_of("FSQ_ROOT") == "/elsewhere"
        fsq.set_const("FSQ_ROOT", "/for all")
        assert fsq.path.base("q") == "/elsewhere/q"
    assert seen == [str(root)]
    assert fsq.path.base("q") == "/for all/q"
    with pytest.raises(fsq.FSQEnvError), constants.using(FSQ_RUT="/x"):
        pass
    with pytest.raises(fsq.FSQEnvError), constants.using(FSQ_ITEM_MODE="x"):
        pass
