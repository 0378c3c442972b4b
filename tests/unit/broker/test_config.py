"""Directives in their four forms, and the files they are read from and written to."""

from __future__ import annotations

import fnmatch
import itertools
import os
import re
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.broker.config import (
    Config,
    ConfigRefused,
    InvalidValue,
    NoConfigFile,
    UnsupportedParameter,
    config_get,
    config_set,
    flags_from_argv,
    glob_matcher,
    load,
    print_config,
    rewrite,
)
from penstock.broker.directives import DIRECTIVES, Use, parse_integer, parse_memory
from penstock.errors import ConfigError

INT64 = 2**63 - 1


@dataclass(frozen=True)
class Row:
    """What is expected of one directive; get is CONFIG GET's answer for the default, None if it has none."""

    default: Any
    get: bytes | None
    file: dict[str, Any]
    file_bad: tuple[str, ...]
    set: dict[bytes, Any] | None = None
    set_bad: tuple[bytes, ...] = ()


def switch(default: bool, *, get: bool = True, settable: bool = True) -> Row:
    word = b"yes" if default else b"no"
    return Row(
        default,
        word if get else None,
        {"yes": True, "no": False, "YES": True},
        ("1", "", "true", "yes no"),
        {b"yes": True, b"No": False} if settable else None,
        (b"1", b"", b"yes ", b"on"),
    )


def path(default: str, *, get: bool = True, required: bool = False) -> Row:
    file = {"a.b": "a.b", '"with blank"': "with blank", r'"\xff"': os.fsdecode(b"\xff")}
    bad = ("a b", r'"a\x00b"')
    return Row(
        default,
        default.encode() if get else None,
        file if required else file | {'""': ""},
        (*bad, '""', ".") if required else bad,
    )


def one_of(default: str, *others: str, settable: bool = True) -> Row:
    names = (default, *others)
    return Row(
        default,
        default.encode(),
        {name: name for name in names} | {name.upper(): name for name in names},
        ("other", '""', default + " " + default),
        {name.upper().encode(): name for name in names} if settable else None,
        (b"other", b"", default.encode() + b" "),
    )


def number(default: int, lowest: int, highest: int, lowest_set: int | None = None, *, settable: bool = True) -> Row:
    """A number that the file takes from lowest to highest, and CONFIG SET from lowest_set on."""
    least = lowest if lowest_set is None else lowest_set
    return Row(
        default,
        b"%d" % default,
        {str(lowest): lowest, f"+00{max(lowest, 1)}": max(lowest, 1), str(highest): highest},
        (str(lowest - 1), str(highest + 1), "x", "1x", '" 1"', "0x5", '""', "1 2", ""),
        {b"%d" % least: least, b"%d" % highest: highest, b"007": 7, b"9\x00x": 9} if settable else None,
        (b"%d" % (least - 1), b"%d" % (highest + 1), b" 5", b"5 ", b"0x5", b"1kb", b"five"),
    )


INT = 2**31 - 1
ROWS = {
    "port": number(7711, 0, 55535, settable=False),
    "bind": Row(
        (),
        b"",
        {"127.0.0.1 ::1": ("127.0.0.1", "::1"), '""': (), " ".join("a" * 16): ("a",) * 16},
        ("", " ".join("a" * 17), 'a ""'),
    ),
    "protected-mode": switch(True),
    "tcp-backlog": number(511, 0, INT, settable=False),
    "unixsocket": path(""),
    "umask": Row(0o077, None, {"027": 0o27, "0": 0}, ("800", "-1", "rwx", '""')),
    "unixsocketperm": Row(0, b"0", {"700": 0o700, "0777": 0o777, "0": 0}, ("800", "1000", "-1", "rwx", '""')),
    "timeout": number(0, 0, INT),
    "tcp-keepalive": Row(
        0, b"no", {"0": 0, "60": 60}, ("yes", "-1", '""'), {b"yes": 300, b"NO": 0}, (b"60", b"1", b"", b"0")
    ),
    "maxclients": number(10000, 1, INT),
    "client-output-buffer-limit": Row(
        (0, 0, 0),
        b"normal 0 0 0",
        {"normal 1mb 1k 60": (2**20, 1000, 60), "NORMAL 0 0 0": (0, 0, 0)},
        ("master 0 0 0", "normal 0 0", "normal 0 0 0 0", "normal x 0 0", "normal 0 0 -1", ""),
        {b"normal 5 4 3": (5, 4, 3), b"normal 1 1 1 normal 2 2 2": (2, 2, 2)},
        (b"", b"normal", b"pubsub 0 0 0", b"normal 0 0 -1", b"slave 1 1 1 normal 2 2 2"),
    ),
    "requirepass": Row(
        b"",
        b"",
        {"secret": b"secret", '""': b"", r'"\x00\xff"': b"\0\xff", "p" * 512: b"p" * 512},
        ("a b", "", "p" * 513),
        {b"secret word": b"secret word", b"": b"", b"\xff\r\n": b"\xff\r\n", b"p" * 512: b"p" * 512},
        (b"p" * 513,),
    ),
    "rename-command": Row(
        {},
        None,
        {'DEBUG ""': {b"debug": b""}, "Info Sta7us": {b"info": b"Sta7us"}},
        ("a", "a b c", '"" b', ""),
    ),
    "tls-port": number(0, 0, 65535, settable=False),
    "tls-cert-file": path(""),
    "tls-key-file": path(""),
    "tls-ca-cert-file": path(""),
    "tls-auth-clients": one_of("optional", "yes", "no", settable=False),
    "tls-cluster": switch(False, settable=False),
    "cluster-secret": Row(
        b"",
        None,
        {"s" * 16: b"s" * 16, '""': b"", r'"\x00\xff 0123456789abc"': b"\0\xff 0123456789abc", "s" * 512: b"s" * 512},
        ("s" * 15, "s" * 513, "two words", ""),
    ),
    "daemonize": switch(False, settable=False),
    "pidfile": path("/var/run/disque.pid"),
    "loglevel": one_of("notice", "debug", "verbose", "warning"),
    "logfile": path(""),
    "syslog-enabled": switch(False, get=False, settable=False),
    "syslog-ident": path("disque", get=False),
    "syslog-facility": one_of("local0", *(f"local{n}" for n in range(1, 8)), "user", settable=False),
    "hz": Row(
        10,
        b"10",
        {"0": 1, "-9": 1, "500": 500, "501": 500},
        ("x", '""', str(2**63)),
        {b"0": 1, b"": 1, b"1000": 500, b"100": 100},
        (b"x", b"1.5", b"%d" % 2**63, b"-1", b"%d" % -(2**63)),
    ),
    "activerehashing": switch(True),
    "databases": number(16, 1, INT, settable=False),
    "maxmemory": Row(
        2**30,
        b"1073741824",
        {"1": 1, "2gb": 2**31, "5M": 5 * 10**6},
        ("0", "-1", "1tb", '""', "1 gb", "1.5gb"),
        {b"0": 0, b"100mb": 100 * 2**20, b"7": 7},
        (b"-1", b"", b"mb", b"1 mb", b"%dgb" % 2**34),
    ),
    "maxmemory-policy": one_of("acks", "noeviction"),
    "maxmemory-samples": number(5, 1, INT),
    "authentication-timeout": number(60, 0, INT),
    "maxmemory-clients": Row(
        0, b"0", {"0": 0, "2gb": 2**31}, ("-1", "x"), {b"0": 0, b"100mb": 100 * 2**20}, (b"-1", b"", b"mb")
    ),
    "maxmemory-unauthenticated": Row(
        2**25,
        b"33554432",
        {"1mb": 2**20, "2gb": 2**31},
        ("1", "0", "-1", "x"),
        {b"1048576": 2**20, b"100mb": 100 * 2**20},
        (b"0", b"1048575", b"", b"mb"),
    ),
    "appendonly": switch(True),
    "appendfilename": Row("disque.aof", None, {"a.aof": "a.aof"}, ("a/b", '""', "..", "a b")),
    "appendfsync": one_of("everysec", "always", "no"),
    "no-appendfsync-on-rewrite": switch(False, settable=False),
    "auto-aof-rewrite-percentage": number(100, 0, INT),
    "auto-aof-rewrite-min-size": Row(
        2**26, b"67108864", {"0": 0, "1kb": 1024}, ("-1", "x"), {b"1024": 1024, b"": 0}, (b"1kb", b"-1")
    ),
    "aof-rewrite-incremental-fsync": switch(True),
    "aof-load-truncated": switch(True),
    "aof-enqueue-jobs-once": switch(False),
    "events-dir": path(""),
    "events-max-bytes": Row(2**30, b"1073741824", {"1mb": 2**20, "2gb": 2**31}, ("1", "0", "-1", "x")),
    "events-bodies": Row(0, b"0", {"0": 0, "4kb": 4096}, ("-1", "x")),
    "cluster-config-file": path("nodes.conf", get=False, required=True),
    "cluster-node-timeout": number(15000, 1, INT64, lowest_set=0),
    "slowlog-log-slower-than": number(10000, -INT64 - 1, INT64, lowest_set=0),
    "slowlog-max-len": number(128, 0, INT),
    "latency-monitor-threshold": number(0, 0, INT64),
}

GET_ALL = """requirepass unixsocket logfile pidfile maxmemory maxmemory-samples timeout
auto-aof-rewrite-percentage auto-aof-rewrite-min-size slowlog-log-slower-than latency-monitor-threshold
slowlog-max-len port tcp-backlog databases maxclients watchdog-period hz cluster-node-timeout tcp-keepalive
no-appendfsync-on-rewrite daemonize activerehashing aof-rewrite-incremental-fsync aof-load-truncated
aof-enqueue-jobs-once maxmemory-policy loglevel appendfsync syslog-facility appendonly dir
client-output-buffer-limit unixsocketperm bind
protected-mode authentication-timeout tls-port tls-cert-file tls-key-file tls-ca-cert-file tls-auth-clients tls-cluster
maxmemory-clients maxmemory-unauthenticated events-dir events-max-bytes events-bodies"""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    base = tmp_path_factory.mktemp("config")
    return (base / str(number) for number in itertools.count())


@pytest.fixture(autouse=True)
def folder(folders: Iterator[Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test runs in a directory of its own (tmp_path would take longer than most of them)."""
    path = next(folders)
    path.mkdir()
    monkeypatch.chdir(path)
    return path


def value_of(config: Config, name: str) -> Any:
    return getattr(config, name.replace("-", "_"))


def values(config: Config) -> dict[str, Any]:
    return {row.name: value_of(config, row.name) for row in DIRECTIVES.values() if row.name != "include"}


def from_text(text: str) -> Config:
    return load("-", [], text)


def every(pick: Callable[[Row], Any]) -> list[Any]:
    return [pytest.param(name, item, id=f"{name}={item!r:.40}") for name, row in ROWS.items() for item in pick(row)]


# One directive


def test_the_rows_of_this_file_are_all_that_a_file_may_hold_but_dir_and_include() -> None:
    assert {*ROWS, "dir", "include"} == {row.name for row in DIRECTIVES.values() if Use.FILE in row.use}


def test_the_attributes_of_config_are_the_directives() -> None:
    declared = set(get_type_hints(Config))
    assert declared == {name.replace("-", "_") for name in DIRECTIVES if name != "include"}


@pytest.mark.parametrize("name", ROWS)
def test_a_directive_has_its_default(name: str) -> None:
    assert value_of(Config(), name) == ROWS[name].default
    assert type(value_of(Config(), name)) is type(ROWS[name].default)


@pytest.mark.parametrize("name", ROWS)
def test_config_get_shows_the_default_of_what_it_may_show(name: str) -> None:
    expected = ROWS[name].get
    assert config_get(Config(), name.encode()) == ([] if expected is None else [(name.encode(), expected)])


@pytest.mark.parametrize(("name", "text"), every(lambda row: row.file))
def test_a_file_gives_a_value(name: str, text: str) -> None:
    assert value_of(from_text(f"{name} {text}"), name) == ROWS[name].file[text]


@pytest.mark.parametrize(("name", "text"), every(lambda row: row.file_bad))
def test_a_file_with_a_bad_value_is_refused_with_its_place(name: str, text: str) -> None:
    with pytest.raises(ConfigError, match=rf"^standard input, line 2: '{name}.*': .+"):
        from_text(f"# a comment\n{name} {text}")


@pytest.mark.parametrize(("name", "value"), every(lambda row: row.set or ()))
def test_config_set_stores_a_value(name: str, value: bytes) -> None:
    config = Config()
    config_set(config, name.upper().encode(), value)
    assert ROWS[name].set is not None
    assert value_of(config, name) == (ROWS[name].set or {})[value]


@pytest.mark.parametrize(("name", "value"), every(lambda row: row.set_bad if row.set else ()))
def test_config_set_refuses_a_bad_value_and_stores_nothing(name: str, value: bytes) -> None:
    config = Config()
    before = values(config)
    with pytest.raises(InvalidValue) as caught:
        config_set(config, name.encode(), value)
    assert caught.value.reply == b"Invalid argument '%s' for CONFIG SET '%s'" % (value, name.encode())
    assert values(config) == before


@pytest.mark.parametrize("name", [*(name for name, row in ROWS.items() if not row.set), "include", "x\udcff", ""])
def test_config_set_of_what_can_not_be_set_is_unsupported(name: str) -> None:
    with pytest.raises(UnsupportedParameter) as caught:
        config_set(Config(), os.fsencode(name), b"yes")
    assert caught.value.reply == b"Unsupported CONFIG parameter: " + os.fsencode(name)


def test_watchdog_period_exists_only_at_run_time() -> None:
    config = Config()
    config_set(config, b"watchdog-period", b"500")
    assert config_get(config, b"watchdog-period") == [(b"watchdog-period", b"500")]
    with pytest.raises(InvalidValue):
        config_set(config, b"watchdog-period", b"-1")
    with pytest.raises(ConfigError, match="CONFIG SET"):
        from_text("watchdog-period 500")


# CONFIG GET and SET


def test_config_get_star_gives_the_35_of_disque_in_its_order_and_then_ours() -> None:
    names = [name.decode() for name, _ in config_get(Config(), b"*")]
    assert names == GET_ALL.split()
    assert names.index("protected-mode") == 35


def test_config_get_shows_values_as_disque_does() -> None:
    config = from_text(
        "tcp-keepalive 60\nmaxmemory 2gb\nunixsocketperm 700\nbind 127.0.0.1 ::1\n"
        "client-output-buffer-limit normal 1kb 2kb 3\nslowlog-log-slower-than -1"
    )
    shown = dict(config_get(config, b"*"))
    assert shown[b"tcp-keepalive"] == b"yes"
    assert shown[b"maxmemory"] == b"2147483648"
    assert shown[b"unixsocketperm"] == b"700"
    assert shown[b"bind"] == b"127.0.0.1 ::1"
    assert shown[b"client-output-buffer-limit"] == b"normal 1024 2048 3"
    assert shown[b"slowlog-log-slower-than"] == b"-1"


def test_config_get_takes_a_pattern_whatever_its_case() -> None:
    assert [name for name, _ in config_get(Config(), b"MAX*[^s]")] == [
        b"maxmemory",
        b"maxmemory-policy",
        b"maxmemory-unauthenticated",
    ]


def test_keepalive_switched_on_again_keeps_the_seconds_of_the_file() -> None:
    config = from_text("tcp-keepalive 60")
    config_set(config, b"tcp-keepalive", b"yes")
    assert config.tcp_keepalive == 60


def test_config_set_applies_before_it_stores() -> None:
    config = Config()
    calls: list[tuple[str, object, int]] = []
    config_set(config, b"TIMEOUT", b"9", lambda name, value: calls.append((name, value, config.timeout)))
    assert calls == [("timeout", 9, 0)]
    assert config.timeout == 9


def test_what_can_not_be_applied_is_not_stored() -> None:
    def refuse(name: str, value: object) -> None:
        raise ConfigRefused("Changing directory: No such file or directory")

    config = Config()
    before = config.dir
    with pytest.raises(ConfigRefused, match=r"^Changing directory: No such file or directory$"):
        config_set(config, b"dir", b"/nowhere", refuse)
    assert config.dir == before


def test_dir_is_absolute_and_goes_on_from_the_one_before(folder: Path) -> None:
    (folder / "a" / "b").mkdir(parents=True)
    assert Config().dir == str(folder)
    config = from_text("dir a\ndir ./b")
    assert config.dir == str(folder / "a" / "b")
    config_set(config, b"dir", b"..")
    assert config_get(config, b"dir") == [(b"dir", os.fsencode(folder / "a"))]


@pytest.mark.parametrize("text", ["dir missing", 'dir ""', r'dir "\x00"', "dir", "dir /etc/passwd"])
def test_a_dir_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="line 1: 'dir"):
        from_text(text)


@pytest.mark.parametrize("value", [b"", b"\0"])
def test_config_set_dir_refuses_what_no_directory_is_called(value: bytes) -> None:
    with pytest.raises(InvalidValue):
        config_set(Config(), b"dir", value)


# Patterns


@pytest.mark.parametrize(
    ("pattern", "name", "expected"),
    [
        (b"", b"", True),
        (b"", b"a", False),
        (b"**", b"", True),
        (b"*a*b", b"xaxbxb", True),
        (b"*a*b", b"xaxbx", False),
        (b"a?", b"a", False),
        (b"[^a]", b"a", False),
        (b"[^a]", b"b", True),
        (b"[c-a]", b"b", True),
        (b"[A-C]", b"b", True),
        (b"[]", b"]", False),
        (b"[^]", b"x", True),
        (b"[ab", b"b", True),
        (b"[a-]", b"_", True),
        (b"[a-", b"-", True),
        (b"[\\]]", b"]", True),
        (b"[a\\-c]", b"b", False),
        (b"\\*", b"*", True),
        (b"\\*", b"a", False),
        (b"a\\", b"a\\", True),
        (b"\\\\", b"\\", True),
    ],
)
def test_a_pattern_of_redis(pattern: bytes, name: bytes, expected: bool) -> None:
    assert glob_matcher(pattern)(name) is expected


# Where the two agree: no backslash, no ] or - or ! as the first of a class, every class closed.
_classes = st.tuples(st.sampled_from(["", "^"]), st.text("abc", min_size=1), st.sampled_from(["", "a-c", "b-d"]))
_pieces = st.one_of(st.sampled_from(["*", "?", "a", "b", "-", "]"]), _classes.map(lambda c: "[" + "".join(c) + "]"))


@given(st.lists(_pieces, max_size=8).map("".join), st.text("abcdAB-]", max_size=8))
def test_patterns_agree_with_fnmatch(pattern: str, name: str) -> None:
    expected = fnmatch.fnmatchcase(name.lower(), pattern.replace("[^", "[!"))
    assert glob_matcher(pattern.encode())(name.encode()) is expected


def test_a_pattern_of_many_stars_takes_no_long_time() -> None:
    assert not glob_matcher(b"*a" * 200 + b"b")(b"a" * 1000)


@given(st.binary(max_size=20), st.binary(max_size=20))
def test_no_pattern_fails(pattern: bytes, name: bytes) -> None:
    assert glob_matcher(pattern)(name) in (True, False)


# Numbers and sizes


@given(st.integers(-INT64 - 1, INT64))
def test_integers_are_plain_decimals(value: int) -> None:
    assert parse_integer(str(value)) == value


@pytest.mark.parametrize("text", ["", "-", "+", "--1", "1_0", "1.0", " 1", "1\n", "\u0661", "9" * 5000, str(2**63)])
def test_other_integers_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a whole number"):
        parse_integer(text)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("10B", 10),
        ("2k", 2000),
        ("2Kb", 2048),
        ("3m", 3_000_000),
        ("3MB", 3 << 20),
        ("1g", 10**9),
        ("1gB", 1 << 30),
        ("0" * 5000 + "7", 7),
        (str(INT64), INT64),
    ],
)
def test_sizes_have_units(text: str, size: int) -> None:
    assert parse_memory(text) == size


@pytest.mark.parametrize("text", ["", "k", "1t", "1kib", "-1", "+1", "1 k", "1.5m", "1k\n", str(2**63), "1\u212a"])
def test_other_sizes_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        parse_memory(text)


# Files


def test_a_file_as_people_write_it(folder: Path) -> None:
    (folder / "node.conf").write_bytes(
        b'# a node\r\n\r\n  PORT 7712\r\n\t# indented\r\ntimeout \'5\'\nTimeout 6\nlogfile "a \\"b\\""\n   \n'
    )
    config = load("node.conf", [])
    assert (config.port, config.timeout, config.logfile) == (7712, 6, 'a "b"')
    assert config.file == str(folder / "node.conf")


def test_flags_count_as_lines_after_the_file(folder: Path) -> None:
    (folder / "node.conf").write_text("port 1\ntimeout 2\n")
    config = load("node.conf", [("port", ["3"]), ("BIND", ["a", "b"]), ("logfile", ["with blank"])])
    assert (config.port, config.timeout, config.bind, config.logfile) == (3, 2, ("a", "b"), "with blank")


def test_without_a_file_there_is_none() -> None:
    assert load(None, []).file is None
    assert load("-", [], "port 1").file is None
    assert values(load(None, [])) == values(Config())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prot 1", "unknown directive 'prot': did you mean port?"),
        ("appendsync no", "did you mean appendfsync?"),
        ("port=7711", "put a blank in place of the ="),
        ("xyzzy 1", "--print-config lists all there are"),
        ('logfile "a', "the quotes don't match"),
        ("port 1 2", "port takes 1 value, not 2"),
        ("bind", "bind takes 1 to 16 values, not 0"),
        ("port 60000", "60000 is out of range: give a number from 0 to 55535"),
        ("daemonize maybe", "'maybe' is neither yes nor no"),
        ("loglevel loud", "'loud' is not one of debug, verbose, notice, warning"),
        ("rename-command a b\nrename-command A c", "'a' is renamed already"),
        ("rename-command a b\nrename-command c B", "another command is renamed to 'B' already"),
        ("logfile \x07\x1b[31m x", "line 1: 'logfile \\x07\\x1b[31m x'"),
    ],
)
def test_an_error_says_what_is_wrong_and_what_to_do(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        from_text(text)


def test_an_error_in_a_flag_shows_the_flag() -> None:
    with pytest.raises(ConfigError, match=r"^command line: '--port x': 'x' is not a whole number"):
        load(None, [("port", ["x"])])


@pytest.mark.parametrize(
    "text", ['requirepass "hunter2', "requirepas hunter2", "requirepass hunter2 x", "cluster-secret hunter2"]
)
def test_an_error_never_shows_a_password(text: str) -> None:
    with pytest.raises(ConfigError) as in_file:
        from_text(text)
    with pytest.raises(ConfigError) as in_flag:
        load(None, [("requirepass", ["hunter2", "x"])])
    assert "hunter2" not in str(in_file.value) + str(in_flag.value)


def test_a_missing_file_and_a_missing_standard_input_are_named() -> None:
    with pytest.raises(ConfigError, match=r"config file none.conf: No such file"):
        load("none.conf", [])
    with pytest.raises(ConfigError, match="no standard input"):
        load("-", [])


def test_a_file_too_large_is_none() -> None:
    with pytest.raises(ConfigError, match="/dev/zero is larger than"):
        load("/dev/zero", [])


def test_renames_are_kept_in_order_and_a_freed_name_can_be_given_again() -> None:
    config = from_text("rename-command a b\nrename-command b c\nrename-command d B")
    assert list(config.rename_command.items()) == [(b"a", b"b"), (b"b", b"c"), (b"d", b"B")]
    assert Config().rename_command == {}


def test_an_include_stands_where_its_line_is(folder: Path) -> None:
    (folder / "other.conf").write_text("port 2\ntimeout 2\nhz 2\n")
    config = from_text('port 1\ntimeout 1\ninclude "other.conf"\ntimeout 3')
    assert (config.port, config.timeout, config.hz) == (2, 3, 2)


def test_a_relative_include_goes_on_from_the_working_directory_not_from_the_file(folder: Path) -> None:
    (folder / "etc").mkdir()
    (folder / "etc" / "node.conf").write_text("include other.conf\ndir etc\ninclude third.conf\n")
    (folder / "other.conf").write_text("port 2\n")
    (folder / "etc" / "third.conf").write_text("timeout 3\n")
    config = load("etc/node.conf", [])
    assert (config.port, config.timeout) == (2, 3)


def test_an_error_in_an_included_file_names_that_file(folder: Path) -> None:
    (folder / "other.conf").write_text("\nport x\n")
    with pytest.raises(ConfigError, match=r"^other.conf, line 2: 'port x'"):
        from_text("include other.conf")


def test_a_missing_include_names_the_line(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"^standard input, line 1: 'include none': can't read .* none"):
        from_text("include none")


def test_files_that_include_each_other_are_refused(folder: Path) -> None:
    (folder / "a").write_text("include b\n")
    (folder / "b").write_text("include ./a\n")
    with pytest.raises(ConfigError, match=r"^b, line 1: 'include ./a': ./a includes itself"):
        load("a", [])


@pytest.mark.parametrize(("depth", "fits"), [(16, True), (17, False)])
def test_includes_nest_sixteen_deep(folder: Path, depth: int, fits: bool) -> None:
    for level in range(depth):
        (folder / f"{level}").write_text(f"include {level + 1}\n")
    (folder / f"{depth}").write_text("port 5\n")
    if fits:
        assert load("0", []).port == 5
    else:
        with pytest.raises(ConfigError, match="too many files"):
            load("0", [])


def test_includes_that_multiply_are_refused(folder: Path) -> None:
    for level in range(12):
        (folder / f"{level}").write_text(f"include {level + 1}\n" * 2)
    (folder / "12").write_text("")
    with pytest.raises(ConfigError, match="too many files"):
        load("0", [])


_names = st.sampled_from([*DIRECTIVES, "prot", "#", '"', ""])
_lines = st.tuples(_names, st.lists(st.one_of(st.text(max_size=6), st.sampled_from(["1", "yes", "/", "normal"]))))
_random = st.lists(_lines.map(lambda line: " ".join([line[0], *line[1]])), max_size=5).map("\n".join)


@given(st.one_of(_random.map(os.fsencode), st.binary()))
def test_random_files_raise_nothing_but_config_errors(data: bytes) -> None:
    try:
        config = load("-", [], os.fsdecode(data))
    except ConfigError:
        return
    config_get(config, b"*")


# The command line


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("", (None, [])),
        ("node.conf", ("node.conf", [])),
        ("-", ("-", [])),
        ("--port 1", (None, [("port", ["1"])])),
        ("- --bind a b --daemonize", ("-", [("bind", ["a", "b"]), ("daemonize", [])])),
        ("f --slowlog-log-slower-than -1", ("f", [("slowlog-log-slower-than", ["-1"])])),
    ],
)
def test_the_words_of_the_command_line(words: str, expected: object) -> None:
    assert flags_from_argv(words.split()) == expected


def test_a_second_file_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'b.conf' after the config file 'a.conf'"):
        flags_from_argv(["a.conf", "b.conf"])


# CONFIG REWRITE


def rewritten(text: str, changes: dict[bytes, bytes]) -> str:
    """What CONFIG REWRITE makes of a file after some CONFIG SET; it must load to the values in force."""
    file = Path("node.conf")
    file.write_text(text)
    config = load("node.conf", [])
    for name, value in changes.items():
        config_set(config, name, value)
    rewrite(config)
    expected = values(config) | {"watchdog-period": 0}
    assert values(load("node.conf", [])) == expected
    return file.read_text()


def test_rewrite_keeps_comments_and_order_and_replaces_in_place(folder: Path) -> None:
    text = f"# a node\n\nport 7712\n# how long\ntimeout 5\n\ndir {folder}\nhz 20\n# the end\n"
    assert rewritten(text, {b"timeout": b"9"}) == text.replace("timeout 5", "timeout 9")


def test_rewrite_adds_what_is_not_the_default_after_its_line(folder: Path) -> None:
    text = f"dir {folder}\n"
    added = "\n# Generated by CONFIG REWRITE\ntimeout 9\nmaxmemory 100mb\n"
    assert rewritten(text, {b"maxmemory": b"104857600", b"timeout": b"9", b"hz": b"10"}) == text + added


def test_rewrite_writes_its_line_once(folder: Path) -> None:
    once = rewritten("port 1\n", {b"timeout": b"9"})
    twice = rewritten(once, {b"hz": b"9"})
    assert twice == once + "hz 9\n"


def test_rewrite_always_writes_dir_and_in_full(folder: Path) -> None:
    (folder / "tmp").mkdir()
    assert rewritten("port 1\n", {}) == f"port 1\n\n# Generated by CONFIG REWRITE\ndir {folder}\n"
    assert rewritten("Dir tmp\n", {}) == f"dir {folder}/tmp\n"
    assert rewritten("dir tmp\n", {b"dir": b"/tmp"}) == "dir /tmp\n"


def test_rewrite_leaves_only_the_first_of_two_lines(folder: Path) -> None:
    assert rewritten(f"timeout 1\ndir {folder}\nTIMEOUT 2\nport 5\n", {}) == f"timeout 2\ndir {folder}\nport 5\n"


def test_rewrite_keeps_the_form_of_a_line_that_is_right_already(folder: Path) -> None:
    text = f"  MaxMemory  1024mb\nrename-command A ''\nrename-command B x\ndir {folder}\nrequirepass 'a b'\n"
    assert rewritten(text, {}) == text
    assert 'requirepass "c d"\n' in rewritten(text, {b"requirepass": b"c d"})


def test_rewrite_sets_a_line_back_to_the_default(folder: Path) -> None:
    assert rewritten(f"requirepass a\ndir {folder}\n", {b"requirepass": b""}) == f'requirepass ""\ndir {folder}\n'


def test_rewrite_overrules_an_included_file_that_comes_later(folder: Path) -> None:
    (folder / "other.conf").write_text("timeout 10\nhz 50\n")
    once = rewritten("timeout 5\ninclude other.conf\n", {b"timeout": b"20", b"hz": b"10"})
    assert once.startswith("timeout 20\ninclude other.conf\n\n# Generated by CONFIG REWRITE\n")
    twice = rewritten(once, {})
    assert sorted(twice.split()) == sorted(once.split())
    assert rewritten(twice, {}) == twice
    assert (folder / "other.conf").read_text() == "timeout 10\nhz 50\n"


def test_rewrite_finds_relative_includes_after_the_server_has_changed_its_directory(folder: Path) -> None:
    (folder / "data").mkdir()
    (folder / "other.conf").write_text("hz 50\n")
    (folder / "node.conf").write_text("include other.conf\ndir data\n")
    config = load("node.conf", [])
    os.chdir(config.dir)
    rewrite(config)
    assert (folder / "node.conf").read_text() == f"include other.conf\ndir {folder}/data\n"


@pytest.mark.parametrize(("name", "value"), [(b"maxmemory", b"0"), (b"cluster-node-timeout", b"0")])
@pytest.mark.parametrize("with_line", [True, False])
def test_rewrite_refuses_to_write_a_file_that_would_not_load(name: bytes, value: bytes, with_line: bool) -> None:
    text = f"{name.decode()} 5\n" if with_line else ""
    with pytest.raises(ConfigError, match=rf"as it would be rewritten, line . *: '{name.decode()} 0'"):
        rewritten(text, {name: value})
    assert Path("node.conf").read_text() == text


def test_rewrite_refuses_a_file_that_someone_broke_meanwhile(folder: Path) -> None:
    (folder / "node.conf").write_text("port 1\n")
    config = load("node.conf", [])
    (folder / "node.conf").write_text('port 1\nlogfile "half\n')
    with pytest.raises(ConfigError, match="line 2"):
        rewrite(config)
    assert list(folder.iterdir()) == [folder / "node.conf"]


def test_rewrite_makes_a_file_that_was_removed_again(folder: Path) -> None:
    (folder / "node.conf").write_text("timeout 7\n")
    config = load("node.conf", [])
    (folder / "node.conf").unlink()
    rewrite(config)
    assert values(load("node.conf", [])) == values(config)


def test_rewrite_without_a_file_is_refused() -> None:
    with pytest.raises(NoConfigFile, match=r"^The server is running without a config file$"):
        rewrite(load("-", [], "port 1"))


def test_rewrite_keeps_mode_and_link(folder: Path) -> None:
    (folder / "real.conf").write_text("timeout 1\n")
    (folder / "real.conf").chmod(0o640)
    (folder / "node.conf").symlink_to("real.conf")
    config = load("node.conf", [("timeout", ["2"])])
    rewrite(config)
    assert (folder / "node.conf").is_symlink()
    assert stat.S_IMODE((folder / "real.conf").stat().st_mode) == 0o640
    assert load("real.conf", []).timeout == 2


def test_a_rewrite_that_fails_leaves_the_file_and_nothing_else(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(handle: int) -> None:
        raise OSError(28, "No space left on device")

    (folder / "node.conf").write_text("timeout 1\n")
    config = load("node.conf", [("timeout", ["2"])])
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space left"):
        rewrite(config)
    assert list(folder.iterdir()) == [folder / "node.conf"]
    assert (folder / "node.conf").read_text() == "timeout 1\n"


_good_lines = st.sampled_from([f"{name} {text}" for name, row in ROWS.items() for text in row.file])
_comments = st.sampled_from(["# a comment", "", "   "])
_good_sets = st.sampled_from(
    [
        (name.encode(), value)
        for name, row in ROWS.items()
        for value, parsed in (row.set or {}).items()
        if not (name in ("maxmemory", "cluster-node-timeout") and parsed == 0)
    ]
)


@settings(max_examples=30, deadline=None)  # each one writes and syncs files
@given(
    st.lists(st.one_of(_good_lines.filter(lambda line: not line.startswith("rename")), _comments)),
    st.lists(_good_sets).map(dict),
)
def test_what_rewrite_writes_loads_to_what_was_in_force(lines: list[str], changes: dict[bytes, bytes]) -> None:
    text = "\n".join(lines)
    result = rewritten(text, changes)
    assert rewritten(result, {}) == result
    assert [line for line in result.split("\n") if line == "# a comment"] == ["# a comment"] * lines.count(
        "# a comment"
    )


# --print-config


def test_print_config_loads_and_says_nothing_but_defaults() -> None:
    assert values(from_text(print_config())) == values(Config())


def test_print_config_explains_every_directive_of_a_file_once() -> None:
    blocks = print_config().strip().split("\n\n")[1:]
    explained = [block.split("\n")[-1].lstrip("# ").split()[0] for block in blocks if not block.startswith("# ==")]
    assert explained == [row.name for row in DIRECTIVES.values() if Use.FILE in row.use]
    assert all(1 <= block.count("\n") <= 4 for block in blocks if not block.startswith("# =="))


def test_print_config_fits_a_screen() -> None:
    assert max(len(line) for line in print_config().split("\n")) <= 110


@pytest.mark.parametrize("name", ["slave", "pubsub"])
def test_output_limits_of_clients_that_disque_never_had_are_passed_over_in_a_file(tmp_path: Path, name: str) -> None:
    path = tmp_path / "disque.conf"
    path.write_text(f"client-output-buffer-limit normal 1mb 0 0\nclient-output-buffer-limit {name} 256mb 64mb 60\n")
    assert load(str(path), []).client_output_buffer_limit == (1 << 20, 0, 0)
