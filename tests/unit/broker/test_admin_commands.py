"""Commands about connections, the server and the cluster, on a real broker. Errors are compared as bytes."""

from __future__ import annotations

import re
from pathlib import Path

import hiredis
import pytest

from penstock.broker.commands.observing import draw
from penstock.broker.commands.table import COMMANDS
from penstock.broker.config import load
from penstock.broker.core.membership import FAIL, LEAVING, LINKED, NO_LINK, PFAIL, Peer
from tests.unit.broker.harness import NODE_ID, LocalServer

OK = b"+OK\r\n"
OTHER_ID = b"ab12" * 10


# Words that are wrong, and exactly what is said about them


@pytest.mark.parametrize(
    ("words", "reply"),
    [
        ("PING a b", b"-ERR wrong number of arguments for 'ping' command\r\n"),
        ("AUTH x", b"-ERR Client sent AUTH, but no password is set\r\n"),
        ("HELLO 4", b"-NOPROTO unsupported protocol version\r\n"),
        ("HELLO 1", b"-NOPROTO unsupported protocol version\r\n"),
        ("HELLO x", b"-ERR Protocol version is not an integer or out of range\r\n"),
        ("HELLO 3 auth me", b"-ERR Syntax error in HELLO option 'auth'\r\n"),
        ("HELLO 3 SETNAME", b"-ERR Syntax error in HELLO option 'SETNAME'\r\n"),
        ("HELLO 3 Frob 1", b"-ERR Syntax error in HELLO option 'Frob'\r\n"),
        ("HELLO 3 AUTH somebody x", b"-WRONGPASS invalid username-password pair or user is disabled.\r\n"),
        ("INFO server cpu", b"-ERR syntax error\r\n"),
        ("COMMAND FROB", b"-ERR Unknown subcommand or wrong number of arguments.\r\n"),
        ("COMMAND COUNT x", b"-ERR Unknown subcommand or wrong number of arguments.\r\n"),
        ("SLOWLOG FROB", b"-ERR Unknown SLOWLOG subcommand or wrong # of args. Try GET, RESET, LEN.\r\n"),
        ("SLOWLOG LEN 1", b"-ERR Unknown SLOWLOG subcommand or wrong # of args. Try GET, RESET, LEN.\r\n"),
        ("SLOWLOG GET x", b"-ERR value is not an integer or out of range\r\n"),
        ("LATENCY FROB", b"-ERR syntax error\r\n"),
        ("LATENCY GRAPH", b"-ERR syntax error\r\n"),
        ("LATENCY GRAPH command", b"-ERR No samples available for event 'command'\r\n"),
        ("CONFIG FROB", b"-ERR CONFIG subcommand must be one of GET, SET, RESETSTAT, REWRITE\r\n"),
        ("CONFIG Get", b"-ERR Wrong number of arguments for CONFIG Get\r\n"),
        ("CONFIG SET hz", b"-ERR Wrong number of arguments for CONFIG SET\r\n"),
        ("CONFIG RESETSTAT x", b"-ERR Wrong number of arguments for CONFIG RESETSTAT\r\n"),
        ("CONFIG REWRITE x", b"-ERR Wrong number of arguments for CONFIG REWRITE\r\n"),
        ("CONFIG SET port 1", b"-ERR Unsupported CONFIG parameter: port\r\n"),
        ("CONFIG SET Frob 1", b"-ERR Unsupported CONFIG parameter: Frob\r\n"),
        ("CONFIG SET Hz x", b"-ERR Invalid argument 'x' for CONFIG SET 'Hz'\r\n"),
        ("CONFIG REWRITE", b"-ERR The server is running without a config file\r\n"),
        ("SHUTDOWN NOW", b"-ERR syntax error\r\n"),
        ("SHUTDOWN REWRITE-AOF x", b"-ERR syntax error\r\n"),
        ("DEBUG Frob", b"-ERR Unknown DEBUG subcommand or wrong number of arguments for 'Frob'\r\n"),
        ("DEBUG SLEEP", b"-ERR Unknown DEBUG subcommand or wrong number of arguments for 'SLEEP'\r\n"),
        ("DEBUG RESTART x", b"-ERR value is not an integer or out of range\r\n"),
        ("DEBUG LOADAOF", b"-ERR\r\n"),
        ("CLUSTER FROB", b"-ERR Wrong CLUSTER subcommand or number of arguments\r\n"),
        ("CLUSTER MEET 1.2.3.4", b"-ERR Wrong CLUSTER subcommand or number of arguments\r\n"),
        ("CLUSTER MEET 1.2.3.4 abc", b"-ERR Invalid TCP port specified: abc\r\n"),
        ("CLUSTER MEET foo 12", b"-ERR Invalid node address specified: foo:12\r\n"),
        ("CLUSTER MEET 1.2.3.4 0", b"-ERR Invalid node address specified: 1.2.3.4:0\r\n"),
        ("CLUSTER MEET 1.2.3.4 55536", b"-ERR Invalid node address specified: 1.2.3.4:55536\r\n"),
        ("CLUSTER MEET fe80::1%eth0 1", b"-ERR Invalid node address specified: fe80::1%eth0:1\r\n"),
        ("CLUSTER FORGET short", b"-ERR Invalid node identifier\r\n"),
        (f"CLUSTER FORGET {'c' * 40}", b"-ERR Unknown node " + b"c" * 40 + b"\r\n"),
        (f"CLUSTER FORGET {NODE_ID.decode()}", b"-ERR I tried hard but I can't forget myself...\r\n"),
        ("CLUSTER RESET gently", b"-ERR syntax error\r\n"),
        ("CLUSTER LEAVING maybe", b"-ERR Wrong argument for CLUSTER LEAVING. Use 'yes' or 'no'\r\n"),
        ("CLIENT KILL 1.2.3.4:5", b"-ERR No such client\r\n"),
        ("CLIENT KILL", b"-ERR syntax error\r\n"),
        ("CLIENT KILL ID 1 ADDR", b"-ERR syntax error\r\n"),
        ("CLIENT KILL ID x", b"-ERR value is not an integer or out of range\r\n"),
        ("CLIENT KILL TYPE slave", b"-ERR Unknown client type 'slave'\r\n"),
        ("CLIENT KILL SKIPME maybe", b"-ERR syntax error\r\n"),
        ("CLIENT PAUSE x", b"-ERR timeout is not an integer or out of range\r\n"),
        ("CLIENT PAUSE -1", b"-ERR timeout is negative\r\n"),
        ("CLIENT REPLY MAYBE", b"-ERR syntax error\r\n"),
        ("CLIENT SETINFO lib-color red", b"-ERR Unrecognized option 'lib-color'\r\n"),
        (
            "CLIENT SETNAME a\x7fb",
            b"-ERR Client names cannot contain spaces, newlines or special characters.\r\n",
        ),
        (
            "HELLO 3 SETNAME a\nb",
            b"-ERR Client names cannot contain spaces, newlines or special characters.\r\n",
        ),
        (
            "CLIENT FROB",
            b"-ERR Syntax error, try CLIENT (LIST | KILL ip:port | GETNAME | SETNAME connection-name)\r\n",
        ),
        (
            "CLIENT LIST x",
            b"-ERR Syntax error, try CLIENT (LIST | KILL ip:port | GETNAME | SETNAME connection-name)\r\n",
        ),
    ],
)
def test_a_wrong_request_is_refused_in_the_words_that_clients_know(words: str, reply: bytes) -> None:
    assert LocalServer().client().raw(*words.split(" ")) == reply


def test_bytes_of_a_refused_word_come_back_as_they_were() -> None:
    client = LocalServer().client()
    assert client.raw("CONFIG", "SET", b"\xff\r", "1") == b"-ERR Unsupported CONFIG parameter: \xff \r\n"
    assert client.raw("CLUSTER", "MEET", "1.2.3.4", b"\xfe") == b"-ERR Invalid TCP port specified: \xfe\r\n"
    assert client.raw("DEBUG", b"\xff") == (
        b"-ERR Unknown DEBUG subcommand or wrong number of arguments for '\xff'\r\n"
    )


# PING and AUTH


def test_ping_answers_pong_or_what_it_was_given() -> None:
    client = LocalServer().client()
    assert client.raw("PING") == b"+PONG\r\n"
    assert client.raw("ping", b"a\r\nb") == b"$4\r\na\r\nb\r\n"


def test_auth_lets_in_and_a_wrong_password_shuts_out_again() -> None:
    client = LocalServer(requirepass=b"secret").client()
    assert client.raw("PING") == b"-NOAUTH Authentication required.\r\n"
    assert client.raw("AUTH", "secret") == OK
    assert client.raw("PING") == b"+PONG\r\n"
    assert client.raw("AUTH", "secre") == b"-ERR invalid password\r\n"
    assert client.raw("PING") == b"-NOAUTH Authentication required.\r\n"


# HELLO


def test_hello_gives_the_node_and_its_priority_as_strings() -> None:
    node = b"$40\r\n" + NODE_ID + b"\r\n"
    assert LocalServer(port=21000).client().raw("HELLO") == (
        b"*3\r\n:1\r\n" + node + b"*4\r\n" + node + b"$0\r\n\r\n$5\r\n21000\r\n$1\r\n1\r\n"
    )


@pytest.mark.parametrize(
    ("flags", "linked", "priority"),
    [
        (0, True, b"1"),
        (0, False, b"5"),
        (PFAIL, True, b"10"),
        (FAIL, True, b"100"),
        (LEAVING, True, b"100"),
        (LEAVING | PFAIL, False, b"100"),
    ],
)
def test_hello_gives_every_known_node_with_its_priority(flags: int, linked: bool, priority: bytes) -> None:
    server = LocalServer()
    peer = Peer(OTHER_ID, "10.0.0.2", 7712, flags, 0)
    peer.link = LINKED if linked else NO_LINK
    server.broker.node.cluster.peers[OTHER_ID] = peer
    version, my_id, me, other = server.client().call("HELLO")
    assert (version, my_id, me[0]) == (1, NODE_ID, NODE_ID)
    assert other == [OTHER_ID, b"10.0.0.2", b"7712", priority]


def test_hello_shows_nodes_in_handshake_and_a_leaving_node_as_the_worst_choice() -> None:
    client = LocalServer().client()
    client.call("CLUSTER", "MEET", "10.0.0.3", 7713)
    client.call("CLUSTER", "LEAVING", "yes")
    _, _, me, other = client.call("HELLO")
    assert me[3] == b"100"
    assert other[1:] == [b"10.0.0.3", b"7713", b"5"]


def test_hello_with_a_version_switches_the_protocol_before_its_reply() -> None:
    client = LocalServer().client()
    three = client.raw("HELLO", 3)
    assert three.startswith(b"%7\r\n$6\r\nserver\r\n$8\r\npenstock\r\n")
    assert client.raw("CLIENT", "GETNAME") == b"_\r\n"
    two = client.raw("HELLO", 2)
    assert two.startswith(b"*14\r\n$6\r\nserver\r\n")
    assert client.raw("CLIENT", "GETNAME") == b"$-1\r\n"


def test_hello_with_a_version_gives_what_redis_clients_look_at() -> None:
    client = LocalServer().client()
    reply = client.call("HELLO", 3, "SETNAME", "bob")
    version = reply.pop(b"version")
    assert re.fullmatch(rb"[0-9]+\..*|unknown", version)
    assert reply == {
        b"server": b"penstock",
        b"proto": 3,
        b"id": client.client.id,
        b"mode": b"cluster",
        b"role": b"master",
        b"modules": [],
    }
    assert client.call("CLIENT", "GETNAME") == b"bob"


def test_hello_without_a_password_given_is_refused_where_one_is_set() -> None:
    client = LocalServer(requirepass=b"secret").client()
    assert client.raw("HELLO") == b"-NOAUTH Authentication required.\r\n"
    assert client.raw("HELLO", 3) == (
        b"-NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> "
        b"AUTH <user> <pass> option can be used to authenticate the client and select the RESP protocol "
        b"version at the same time\r\n"
    )
    assert client.client.protocol == 2


def test_hello_can_bring_the_password() -> None:
    client = LocalServer(requirepass=b"secret").client()
    wrong = b"-WRONGPASS invalid username-password pair or user is disabled.\r\n"
    assert client.raw("HELLO", 3, "AUTH", "default", "guess", "SETNAME", "bob") == wrong
    assert (client.client.protocol, client.client.name) == (2, b"")
    assert client.raw("HELLO", 3, "AUTH", "root", "secret") == wrong
    assert client.call("HELLO", 3, "AUTH", "default", "secret")[b"proto"] == 3
    assert client.raw("PING") == b"+PONG\r\n"


def test_hello_takes_any_password_of_the_default_user_where_none_is_set() -> None:
    assert LocalServer().client().call("HELLO", 3, "AUTH", "default", "whatever")[b"proto"] == 3


# CLIENT


def test_client_list_has_a_line_of_known_fields_for_each_client() -> None:
    server = LocalServer()
    other = server.client("10.0.0.9:1234")
    other.call("CLIENT", "SETNAME", "worker")
    server.advance(5)
    client = server.client()
    other.unread, other.buffered = 17, 4000
    first, second = client.call("CLIENT", "LIST").decode().splitlines()
    assert first == (
        "id=1 addr=10.0.0.9:1234 fd=8 name=worker age=5 idle=5 flags=N qbuf=17 qbuf-free=0 obl=0 oll=0 "
        "omem=4000 events=r cmd=client"
    )
    assert second.startswith("id=2 addr=127.0.0.1:50002 fd=9 name= age=0 idle=0 flags=N ")
    assert second.endswith(" cmd=client")


def test_client_list_shows_no_command_of_a_client_that_sent_none() -> None:
    server = LocalServer()
    server.client()
    assert server.client().call("CLIENT", "LIST").splitlines()[0].endswith(b" cmd=NULL")


def test_client_list_has_letters_for_what_a_client_does() -> None:
    server = LocalServer()
    monitor, waiter, local, ending = (
        server.client(),
        server.client(),
        server.client("/tmp/s:0", True),
        server.client(),
    )
    monitor.call("MONITOR")
    waiter.send(["GETJOB", "FROM", "q"])
    ending.client.closing = True
    assert local.client.is_unix
    lines = server.client().call("CLIENT", "LIST").decode()
    assert re.findall(r"flags=(\w+)", lines) == ["O", "b", "U", "c", "N"]


def test_client_kill_by_address_closes_the_connection_at_once() -> None:
    server = LocalServer()
    victim, client = server.client("10.0.0.9:1234"), server.client()
    assert client.raw("CLIENT", "KILL", "10.0.0.9:1234") == OK
    assert victim.closed == "now"
    assert client.raw("CLIENT", "KILL", "10.0.0.9:1234") == b"-ERR No such client\r\n"


def test_a_client_that_kills_itself_gets_its_reply_first() -> None:
    server = LocalServer()
    client = server.client("10.0.0.9:1234")
    client.send(["CLIENT", "KILL", "10.0.0.9:1234"], ["PING"])
    assert client.pushed() == [b"OK"]
    assert client.closed == "after replies"


def test_a_client_that_kills_itself_closes_also_with_replies_off() -> None:
    client = LocalServer().client("10.0.0.9:1234")
    client.send(["CLIENT", "REPLY", "OFF"], ["CLIENT", "KILL", "10.0.0.9:1234"])
    assert (client.pushed(), client.closed) == ([], "after replies")


def test_client_kill_with_filters_counts_those_that_pass_all_of_them() -> None:
    server = LocalServer()
    client, other, third = server.client(), server.client("10.0.0.9:1"), server.client("10.0.0.9:2")
    assert client.call("CLIENT", "KILL", "ID", other.client.id, "ADDR", "10.0.0.9:2") == 0
    assert client.call("CLIENT", "KILL", "ID", other.client.id, "addr", "10.0.0.9:1") == 1
    assert (other.closed, third.closed) == ("now", "")
    assert client.call("CLIENT", "KILL", "TYPE", "normal") == 1
    assert (third.closed, client.closed) == ("now", "")
    assert client.call("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "no") == 1
    assert client.closed == "after replies"


def test_a_killed_client_that_waited_is_given_no_job() -> None:
    server = LocalServer()
    waiter, client = server.client("10.0.0.9:1"), server.client()
    waiter.send(["GETJOB", "FROM", "q"])
    client.send(["CLIENT", "KILL", "10.0.0.9:1"], ["ADDJOB", "q", "b", "0"], ["QLEN", "q"])
    assert client.pushed()[2] == 1


def test_a_client_has_the_name_it_gave_itself() -> None:
    client = LocalServer().client()
    assert client.raw("CLIENT", "GETNAME") == b"$-1\r\n"
    assert client.raw("CLIENT", "SETNAME", "bob!~") == OK
    assert client.raw("CLIENT", "GETNAME") == b"$5\r\nbob!~\r\n"
    assert client.raw("CLIENT", "SETNAME", "") == OK
    assert client.raw("CLIENT", "GETNAME") == b"$-1\r\n"


def test_names_have_a_limit() -> None:
    client = LocalServer().client()
    assert client.raw("CLIENT", "SETNAME", "x" * 1024) == OK
    assert client.raw("CLIENT", "SETNAME", "x" * 1025).startswith(b"-ERR Client names can be at most 1024")
    assert client.raw("CLIENT", "SETINFO", "lib-ver", "1" * 1025).startswith(b"-ERR lib-ver can be at most")


def test_a_client_may_tell_its_library() -> None:
    client = LocalServer().client()
    assert client.raw("CLIENT", "SETINFO", "LIB-NAME", "redis-py") == OK
    assert client.raw("CLIENT", "SETINFO", "lib-ver", "6.1") == OK
    assert client.client.library == {b"lib-name": b"redis-py", b"lib-ver": b"6.1"}
    assert client.raw("CLIENT", "SETINFO", "lib-name", "a b") == (
        b"-ERR lib-name cannot contain spaces, newlines or special characters.\r\n"
    )


def test_a_client_can_ask_for_its_id() -> None:
    server = LocalServer()
    server.client()
    assert server.client().raw("CLIENT", "ID") == b":2\r\n"


def test_client_pause_holds_the_requests_of_all_clients() -> None:
    server = LocalServer()
    client, other = server.client(), server.client()
    client.send(["CLIENT", "PAUSE", "500"], ["PING", "mine"])
    other.send(["PING", "theirs"])
    assert (client.pushed(), other.pushed()) == ([b"OK"], [])
    server.advance(0.4)
    assert (client.pushed(), other.pushed()) == ([], [])
    server.advance(0.2)
    assert (client.pushed(), other.pushed()) == ([b"mine"], [b"theirs"])


def test_client_reply_off_mutes_everything_until_on() -> None:
    client = LocalServer().client()
    client.send(["CLIENT", "REPLY", "OFF"], ["PING"], ["FROB"], ["CLIENT", "REPLY", "SKIP"], ["PING"], ["PING"])
    assert client.pushed() == []
    assert client.raw("CLIENT", "REPLY", "ON") == OK
    assert client.raw("PING") == b"+PONG\r\n"


def test_client_reply_skip_mutes_itself_and_the_next_command_only() -> None:
    client = LocalServer().client()
    client.send(["CLIENT", "REPLY", "SKIP"], ["PING", "a"], ["PING", "b"], ["PING", "c"])
    assert client.pushed() == [b"b", b"c"]
    client.send(["CLIENT", "REPLY", "SKIP"], ["CLIENT", "REPLY", "SKIP"], ["PING", "a"], ["PING", "b"])
    assert client.pushed() == [b"b"]


def test_client_reply_skip_mutes_a_reply_that_comes_later() -> None:
    server = LocalServer()
    client = server.client()
    client.send(["CLIENT", "REPLY", "SKIP"], ["GETJOB", "TIMEOUT", "300", "FROM", "q"], ["PING"])
    server.advance(0.5)
    assert client.pushed() == [b"PONG"]


def test_what_a_muted_client_adds_is_written_down_in_the_same_turn() -> None:
    server = LocalServer(appendonly=True)
    server.client().send(["CLIENT", "REPLY", "OFF"], ["ADDJOB", "q", "body", "0"])
    assert b"LOADJOB" in server.disk.files["disque.aof"]


def test_client_reply_off_mutes_a_reply_that_comes_later() -> None:
    server = LocalServer()
    client = server.client()
    client.send(["CLIENT", "REPLY", "OFF"], ["GETJOB", "TIMEOUT", "300", "FROM", "q"], ["PING"])
    server.advance(0.5)
    assert client.pushed() == []


# INFO

SECTIONS = {
    "Server": "disque_version disque_git_sha1 disque_git_dirty disque_build_id os arch_bits multiplexing_api "
    "gcc_version process_id run_id tcp_port uptime_in_seconds uptime_in_days hz executable config_file "
    "penstock_version penstock_modules",
    "Clients": "connected_clients client_longest_output_list client_biggest_input_buf blocked_clients",
    "Memory": "used_memory used_memory_human used_memory_rss used_memory_peak used_memory_peak_human "
    "mem_fragmentation_ratio mem_allocator mem_clients_normal mem_clients_unauthenticated",
    "Jobs": "registered_jobs",
    "Queues": "registered_queues",
    "Persistence": "loading aof_enabled aof_state aof_rewrite_in_progress aof_rewrite_scheduled "
    "aof_last_rewrite_time_sec aof_current_rewrite_time_sec aof_last_bgrewrite_status aof_last_write_status",
    "Stats": "total_connections_received total_commands_processed instantaneous_ops_per_sec "
    "total_net_input_bytes total_net_output_bytes instantaneous_input_kbps instantaneous_output_kbps "
    "rejected_connections expired_jobs latest_fork_usec",
    "CPU": "used_cpu_sys used_cpu_user used_cpu_sys_children used_cpu_user_children",
}
JOURNAL_KEYS = (
    "aof_current_size aof_base_size aof_pending_rewrite aof_buffer_length aof_rewrite_buffer_length "
    "aof_pending_bio_fsync aof_delayed_fsync"
)
LOADING_KEYS = "loading_start_time loading_total_bytes loading_loaded_bytes loading_loaded_perc loading_eta_seconds"


def info(server: LocalServer, *section: str) -> dict[str, dict[str, str]]:
    text = server.client().call("INFO", *section).decode()
    parts = {}
    for part in text.split("\r\n\r\n") if text else []:
        title, *lines = part.removesuffix("\r\n").split("\r\n")
        parts[title.removeprefix("# ")] = dict(line.split(":", 1) for line in lines)
    return parts


def test_info_has_the_sections_and_keys_that_tools_look_for_in_their_order() -> None:
    found = info(LocalServer())
    assert {title: " ".join(pairs) for title, pairs in found.items()} == SECTIONS
    assert list(found) == list(SECTIONS)


def test_info_sections_are_headed_and_separated_by_an_empty_line() -> None:
    text = LocalServer().client().call("INFO")
    assert text.startswith(b"# Server\r\ndisque_version:1.0-rc1\r\ndisque_git_sha1:00000000\r\n")
    assert b"\r\n\r\n# Jobs\r\nregistered_jobs:0\r\n\r\n# Queues\r\nregistered_queues:0\r\n\r\n# Pers" in text
    assert text.endswith(b"\r\nused_cpu_user_children:0.12\r\n")


def test_info_gives_one_section_by_name_in_any_case_and_nothing_for_an_unknown_one() -> None:
    client = LocalServer().client()
    assert client.raw("INFO", "JOBS") == b"$27\r\n# Jobs\r\nregistered_jobs:0\r\n\r\n"
    assert client.raw("INFO", "frob") == b"$0\r\n\r\n"
    assert client.call("INFO", "default").startswith(b"# Server\r\n")


def test_info_tells_about_the_node() -> None:
    server = LocalServer(port=7799)
    server.client().send(["GETJOB", "FROM", "empty"])
    server.client().unread = 77
    server.client().call("ADDJOB", "q", "body", 0)
    found = info(server)
    assert re.fullmatch("[0-9a-f]{40}", found["Server"]["run_id"])
    assert found["Server"]["disque_build_id"] == found["Server"]["run_id"][:16]
    assert found["Server"]["tcp_port"] == "7799"
    assert found["Server"]["uptime_in_seconds"] == "200000"
    assert found["Server"]["uptime_in_days"] == "2"
    assert found["Server"]["process_id"] == "4711"
    assert found["Clients"] == {
        "connected_clients": "4",
        "client_longest_output_list": "0",
        "client_biggest_input_buf": "77",
        "blocked_clients": "1",
    }
    used = server.broker.node.memory.used_bytes
    assert found["Memory"]["used_memory"] == found["Memory"]["used_memory_peak"] == str(used)
    assert found["Memory"]["used_memory_human"] == f"{used / 1024:.2f}K"
    assert found["Memory"]["mem_fragmentation_ratio"] == f"{200_000 / used:.2f}"
    assert found["Jobs"] == {"registered_jobs": "1"}
    assert found["Queues"] == {"registered_queues": "2"}
    assert found["Stats"]["total_connections_received"] == "4"
    assert found["Stats"]["latest_fork_usec"] == "0"


def test_info_all_adds_the_commands_that_were_called() -> None:
    server = LocalServer()
    server.client().call("DEBUG", "SLEEP", "0.25")
    assert "Commandstats" not in info(server)
    found = info(server, "all")
    assert list(found) == [*SECTIONS, "Commandstats"]
    assert found["Commandstats"]["cmdstat_debug"] == "calls=1,usec=250000,usec_per_call=250000.00"
    assert found["Commandstats"]["cmdstat_info"].startswith("calls=1,")
    assert set(info(server, "commandstats")["Commandstats"]) == {"cmdstat_debug", "cmdstat_info"}


def test_info_tells_more_of_a_journal_that_is_on() -> None:
    found = info(LocalServer(appendonly=True), "persistence")["Persistence"]
    assert " ".join(found) == f"{SECTIONS['Persistence']} {JOURNAL_KEYS}"
    assert (found["aof_enabled"], found["aof_state"], found["aof_last_write_status"]) == ("1", "on", "ok")


def test_info_tells_how_far_loading_has_come() -> None:
    server = LocalServer()
    server.broker.persistence.begin_load(1000)
    server.now_s += 3
    found = info(server, "persistence")["Persistence"]
    assert " ".join(found) == f"{SECTIONS['Persistence']} {LOADING_KEYS}"
    assert found["loading"] == "1"
    assert found["loading_start_time"] == "1700000000"
    assert (found["loading_total_bytes"], found["loading_loaded_perc"]) == ("1000", "0.00")


# COMMAND and TIME


def test_command_gives_every_command_with_its_arity_and_flags() -> None:
    client = LocalServer().client()
    rows = client.call("COMMAND")
    assert {row[0].decode() for row in rows} == set(COMMANDS)
    assert [b"addjob", -4, [b"write", b"denyoom", b"fast"], 0, 0, 0] in rows
    assert client.call("COMMAND", "COUNT") == len(COMMANDS)


def test_command_info_has_a_null_for_a_command_that_is_not_there() -> None:
    assert LocalServer().client().raw("COMMAND", "info", "FROB", "QLEN") == (
        b"*2\r\n$-1\r\n*6\r\n$4\r\nqlen\r\n:2\r\n*2\r\n+readonly\r\n+fast\r\n:0\r\n:0\r\n:0\r\n"
    )


def test_command_leaves_out_what_the_configuration_removed() -> None:
    client = LocalServer(rename_command={b"debug": b"", b"config": b"settings"}).client()
    assert client.call("COMMAND", "COUNT") == len(COMMANDS) - 1
    assert client.call("COMMAND", "INFO", "debug", "config") == [None, None]
    assert client.call("COMMAND", "INFO", "settings")[0][0] == b"config"


def test_command_docs_is_empty_but_no_error() -> None:
    client = LocalServer().client()
    assert client.raw("COMMAND", "DOCS") == b"*0\r\n"
    client.call("HELLO", 3)
    assert client.raw("COMMAND", "DOCS", "get") == b"%0\r\n"


def test_time_is_the_wall_clock() -> None:
    server = LocalServer()
    server.now_s += 0.25
    assert server.client().raw("TIME") == b"*2\r\n$10\r\n1700000000\r\n$6\r\n250000\r\n"


# MONITOR, SLOWLOG, LATENCY


def test_a_monitor_sees_commands_before_they_run() -> None:
    server = LocalServer()
    monitor, client = server.client(), server.client()
    assert monitor.raw("MONITOR") == OK
    client.send(["ADDJOB", b'q"x', b"a\r\n\x01", "0"])
    assert monitor.pushed() == [rb'1700000000.000000 [127.0.0.1:50002] "ADDJOB" "q\"x" "a\r\n\x01" "0"']


def test_a_second_monitor_on_a_connection_gets_no_reply_and_no_second_line() -> None:
    server = LocalServer()
    monitor = server.client()
    monitor.call("MONITOR")
    assert monitor.raw("MONITOR") == b""
    server.client().call("PING")
    assert len(monitor.pushed()) == 1


def test_slowlog_keeps_what_was_slow_newest_first() -> None:
    server = LocalServer()
    client = server.client()
    client.call("PING")
    for seconds in ("0.5", "0.25"):
        client.call("DEBUG", "SLEEP", seconds)
    assert client.call("SLOWLOG", "LEN") == 2
    assert client.call("SLOWLOG", "GET") == [
        [1, 1700000000, 250000, [b"DEBUG", b"SLEEP", b"0.25"]],
        [0, 1700000000, 500000, [b"DEBUG", b"SLEEP", b"0.5"]],
    ]
    assert [entry[0] for entry in client.call("SLOWLOG", "GET", 1)] == [1]
    assert len(client.call("SLOWLOG", "GET", -1)) == 2
    assert client.raw("SLOWLOG", "RESET") == OK
    assert client.raw("SLOWLOG", "GET") == b"*0\r\n"


def test_slowlog_gives_ten_unless_told() -> None:
    client = LocalServer().client()
    for _ in range(12):
        client.call("DEBUG", "SLEEP", "0.5")
    assert len(client.call("SLOWLOG", "GET")) == 10
    assert len(client.call("SLOWLOG", "GET", 100)) == 12


def slow_desk() -> LocalServer:
    server = LocalServer()
    client = server.client()
    client.call("CONFIG", "SET", "latency-monitor-threshold", 100)
    for seconds in ("0.25", "0.5", "0.125", "0.01"):
        server.advance(2)
        client.call("DEBUG", "SLEEP", seconds)
    return server


def test_latency_tells_spikes_by_event() -> None:
    client = slow_desk().client()
    assert client.call("LATENCY", "LATEST") == [[b"command", 1700000006, 125, 500]]
    assert client.call("LATENCY", "HISTORY", "command") == [
        [1700000002, 250],
        [1700000004, 500],
        [1700000006, 125],
    ]
    assert client.raw("LATENCY", "HISTORY", "fork") == b"*0\r\n"


def test_latency_is_watched_from_the_start_where_the_configuration_says_so() -> None:
    client = LocalServer(latency_monitor_threshold=100).client()
    client.call("DEBUG", "SLEEP", "0.5")
    assert client.call("LATENCY", "LATEST") == [[b"command", 1700000000, 500, 500]]


def test_latency_reset_forgets_the_named_events_or_all() -> None:
    client = slow_desk().client()
    assert client.raw("LATENCY", "RESET", "fork") == b":0\r\n"
    assert client.raw("LATENCY", "RESET", "command", "fork") == b":1\r\n"
    assert client.raw("LATENCY", "RESET") == b":0\r\n"
    assert client.raw("LATENCY", "LATEST") == b"*0\r\n"


def test_latency_graph_draws_a_column_for_each_spike() -> None:
    head, _, *rows, last = slow_desk().client().call("LATENCY", "GRAPH", "command").decode().splitlines()
    assert head == "command - 3 spikes, 125 to 500 ms; worst ever 500 ms"
    assert [row.count("#") for row in rows] == [1, 1, 1, 2, 3, 3]
    assert rows[0].startswith("     500 ms |")
    assert last == "from 6s ago (left) to 2s ago (right)"


def test_latency_graph_shows_the_newest_spikes_when_there_are_many() -> None:
    text = draw("command", [(second, 10 + second) for second in range(160)], 999, 160)
    assert "60 spikes, 110 to 169 ms; worst ever 999 ms" in text
    assert max(map(len, text.splitlines())) <= 80


def test_latency_doctor_says_what_to_do() -> None:
    server = LocalServer()
    client = server.client()
    assert b"CONFIG SET latency-monitor-threshold" in client.call("LATENCY", "DOCTOR")
    client.call("CONFIG", "SET", "latency-monitor-threshold", 100)
    assert b"All is well" in client.call("LATENCY", "DOCTOR")
    report = slow_desk().client().call("LATENCY", "DOCTOR")
    assert b"1. command: 3 spikes, one every 2 s; 292 ms on average, 500 ms at worst." in report
    assert b"SLOWLOG" in report


# CONFIG


def test_config_get_is_flat_in_resp2_and_a_map_in_resp3() -> None:
    client = LocalServer().client()
    assert client.raw("CONFIG", "GET", "maxmemory") == b"*2\r\n$9\r\nmaxmemory\r\n$10\r\n1073741824\r\n"
    assert client.raw("CONFIG", "GET", "frob*") == b"*0\r\n"
    assert list(client.flat_map("CONFIG", "GET", "*"))[:3] == [b"requirepass", b"unixsocket", b"logfile"]
    client.call("HELLO", 3)
    assert client.call("CONFIG", "GET", "appendf*") == {b"appendfsync": b"everysec"}


def test_config_set_of_memory_takes_effect_at_once() -> None:
    server = LocalServer()
    client = server.client()
    assert client.raw("CONFIG", "SET", "maxmemory", "1kb") == OK
    assert client.raw("ADDJOB", "q", "b", 0) == (b"-OOM command not allowed when used memory > 'maxmemory'.\r\n")
    assert client.raw("CONFIG", "SET", "MAXMEMORY", "0") == OK
    assert "I'm out of memory" in str(client.call("ADDJOB", "q", "b", 0))  # not OOM: other nodes may keep it
    assert client.raw("CONFIG", "SET", "maxmemory", "1gb") == OK
    assert len(client.call("ADDJOB", "q", "b", 0)) == 40
    assert client.raw("CONFIG", "SET", "maxmemory-policy", "noeviction") == OK
    assert server.broker.node.memory.evict is False


def test_config_set_of_a_password_shuts_out_clients_that_are_connected() -> None:
    server = LocalServer()
    client, other = server.client(), server.client()
    assert client.raw("CONFIG", "SET", "requirepass", "secret") == OK
    assert other.raw("PING") == b"-NOAUTH Authentication required.\r\n"
    assert client.raw("AUTH", "secret") == OK
    assert client.raw("CONFIG", "SET", "requirepass", "") == OK
    assert other.raw("PING") == b"+PONG\r\n"


def test_config_set_of_the_slow_log_takes_effect_at_once() -> None:
    client = LocalServer().client()
    client.call("CONFIG", "SET", "slowlog-log-slower-than", 600_000)
    client.call("DEBUG", "SLEEP", "0.5")
    assert client.call("SLOWLOG", "LEN") == 0
    client.call("CONFIG", "SET", "slowlog-log-slower-than", 400_000)
    client.call("DEBUG", "SLEEP", "0.5")
    assert client.call("SLOWLOG", "LEN") == 1


def test_a_smaller_slow_log_keeps_the_newest() -> None:
    client = LocalServer().client()
    for _ in range(5):
        client.call("DEBUG", "SLEEP", "0.5")
    client.call("CONFIG", "SET", "slowlog-max-len", 2)
    assert [entry[0] for entry in client.call("SLOWLOG", "GET")] == [4, 3]


def test_what_concerns_the_process_is_put_into_effect_by_the_shell() -> None:
    server = LocalServer()
    client = server.client()
    for name, value in (("dir", "/tmp"), ("maxclients", "50"), ("loglevel", "debug"), ("hz", "900")):
        assert client.raw("CONFIG", "SET", name, value) == OK
    assert client.raw("CONFIG", "SET", "tcp-keepalive", "yes") == OK
    assert server.shell.asked == [
        ("apply", "dir", "/tmp"),
        ("apply", "maxclients", 50),
        ("apply", "loglevel", "debug"),
        ("apply", "hz", 500),
        ("apply", "tcp-keepalive", 300),
    ]


def test_what_the_shell_refuses_is_not_stored() -> None:
    server = LocalServer()
    client = server.client()
    server.shell.refuses["dir"] = "Changing directory: No such file or directory"
    before = server.broker.config.dir
    assert client.raw("CONFIG", "SET", "dir", "/nowhere") == (b"-ERR Changing directory: No such file or directory\r\n")
    assert server.broker.config.dir == before


def test_config_set_turns_the_journal_on_with_a_rewrite_and_off() -> None:
    server = LocalServer()
    client = server.client()
    job = client.call("ADDJOB", "q", "before", 0)
    assert client.raw("CONFIG", "SET", "appendonly", "yes") == OK
    assert info(server, "persistence")["Persistence"]["aof_state"] == "wait-rewrite"
    server.finish_rewrite()
    assert info(server, "persistence")["Persistence"]["aof_state"] == "on"
    assert job in server.disk.files["disque.aof"]
    assert client.raw("CONFIG", "SET", "appendfsync", "always") == OK
    assert server.broker.journal is not None
    assert server.broker.journal.policy == "always"
    assert client.raw("CONFIG", "SET", "appendonly", "no") == OK
    assert info(server, "persistence")["Persistence"]["aof_state"] == "off"


def test_a_journal_that_cannot_be_turned_on_stays_off() -> None:
    server = LocalServer()
    client = server.client()
    client.call("BGREWRITEAOF")
    refusal = b"-ERR Unable to turn on AOF. Check server logs.\r\n"
    assert client.raw("CONFIG", "SET", "appendonly", "yes") == refusal
    assert client.flat_map("CONFIG", "GET", "appendonly") == {b"appendonly": b"no"}


def test_config_resetstat_zeroes_totals_and_command_statistics() -> None:
    server = LocalServer()
    client = server.client()
    client.call("PING")
    assert client.raw("CONFIG", "RESETSTAT") == OK
    found = info(server, "all")
    assert found["Stats"]["total_connections_received"] == "1"  # the one that asks
    assert "cmdstat_ping" not in found["Commandstats"]


def test_config_resetstat_makes_no_rate_negative() -> None:
    server = LocalServer()
    client = server.client()
    for _ in range(50):
        client.call("PING")
    server.advance(1)
    client.call("CONFIG", "RESETSTAT")
    server.advance(0.2)
    assert not info(server, "stats")["Stats"]["instantaneous_output_kbps"].startswith("-")


def test_config_rewrite_writes_what_is_in_force(tmp_path: Path) -> None:
    file = tmp_path / "node.conf"
    file.write_text("# mine\nhz 20\n")
    server = LocalServer()
    server.broker.config = load(str(file), [])
    client = server.client()
    client.call("CONFIG", "SET", "timeout", 30)
    assert client.raw("CONFIG", "REWRITE") == OK
    assert file.read_text().startswith("# mine\nhz 20\n")
    assert "\ntimeout 30\n" in file.read_text()


def test_config_rewrite_tells_why_it_failed(tmp_path: Path) -> None:
    server = LocalServer(file=str(tmp_path / "gone" / "node.conf"))
    assert server.client().raw("CONFIG", "REWRITE") == (b"-ERR Rewriting config file: No such file or directory\r\n")


# BGREWRITEAOF and SHUTDOWN


def test_bgrewriteaof_writes_a_file_even_with_the_journal_off() -> None:
    server = LocalServer()
    client = server.client()
    job = client.call("ADDJOB", "q", "body", 0)
    assert client.raw("BGREWRITEAOF") == b"+Background append only file rewriting started\r\n"
    assert client.raw("BGREWRITEAOF") == (b"-ERR Background append only file rewriting already in progress\r\n")
    server.finish_rewrite()
    assert job in server.disk.files["disque.aof"]
    assert info(server, "persistence")["Persistence"]["aof_last_bgrewrite_status"] == "ok"


@pytest.mark.parametrize("words", [["SHUTDOWN"], ["shutdown", "rewrite-aof"]])
def test_shutdown_closes_the_journal_then_stops_without_a_reply(words: list[str]) -> None:
    server = LocalServer(appendonly=True)
    client = server.client()
    client.call("ADDJOB", "q", "body", 0)
    assert client.raw(*words) == b""
    assert server.shell.asked == [("stop",)]
    assert client.closed == "after replies"
    assert server.broker.journal is None
    assert server.disk.files["disque.aof.state"].endswith(b"CLEAN\r\n")


def test_shutdown_that_cannot_write_does_not_stop() -> None:
    server = LocalServer(appendonly=True)
    server.disk.failure = OSError(28, "No space left on device")
    client = server.client()
    assert client.raw("SHUTDOWN", "REWRITE-AOF") == b"-ERR Errors trying to SHUTDOWN. Check logs.\r\n"
    assert server.shell.asked == []
    assert not client.closed


def test_shutdown_waits_for_a_journal_that_is_still_being_made() -> None:
    server = LocalServer()
    client = server.client()
    client.call("CONFIG", "SET", "appendonly", "yes")
    assert client.raw("SHUTDOWN") == b"-ERR Errors trying to SHUTDOWN. Check logs.\r\n"


# DEBUG


def test_debug_flushall_drops_jobs_queues_and_pauses_and_answers_who_waits() -> None:
    server = LocalServer()
    client, waiter = server.client(), server.client()
    client.call("ADDJOB", "q", "body", 0)
    client.call("PAUSE", "p", "in")
    waiter.send(["GETJOB", "FROM", "empty"])
    assert client.raw("DEBUG", "FLUSHALL") == OK
    assert waiter.pushed() == [None]
    assert info(server, "jobs")["Jobs"]["registered_jobs"] == "0"
    assert info(server, "queues")["Queues"]["registered_queues"] == "0"


def test_debug_loadaof_brings_back_what_the_journal_holds_and_loses_nothing_of_it() -> None:
    server = LocalServer(appendonly=True)
    client = server.client()
    job = client.call("ADDJOB", "q", "body", 0)
    for _ in range(2):
        assert client.raw("DEBUG", "LOADAOF") == OK
        assert client.flat_map("SHOW", job)[b"body"] == b"body"


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        (["RESTART"], ("restart", False, 0)),
        (["restart", "250"], ("restart", False, 250)),
        (["RESTART", "-5"], ("restart", False, 0)),
        (["CRASH-AND-RECOVER", "10"], ("restart", True, 10)),
    ],
)
def test_debug_restarts_without_a_reply(words: list[str], asked: tuple[object, ...]) -> None:
    server = LocalServer()
    assert server.client().raw("DEBUG", *words) == b""
    assert server.shell.asked == [asked]


def test_debug_restart_that_fails_says_so() -> None:
    server = LocalServer()
    server.shell.failure = OSError(8, "Exec format error")
    assert server.client().raw("DEBUG", "RESTART") == (b"-ERR failed to restart the server. Check server logs.\r\n")


def test_debug_sleep_stands_still() -> None:
    server = LocalServer()
    before = server.now_s
    assert server.client().raw("DEBUG", "SLEEP", "1.5") == OK
    assert server.now_s == before + 1.5


@pytest.mark.parametrize("seconds", ["x", "", "-1", "nan", "inf", "3601"])
def test_debug_sleep_takes_only_a_sensible_time(seconds: str) -> None:
    assert LocalServer().client().raw("DEBUG", "SLEEP", seconds) == (
        b"-ERR SLEEP takes a number of seconds between 0 and 3600\r\n"
    )


def test_debug_error_echoes_its_text_as_one_line() -> None:
    assert LocalServer().client().raw("DEBUG", "ERROR", "CODE a\r\n+b") == b"-CODE a  +b\r\n"


def test_debug_structsize_names_sizes() -> None:
    assert re.fullmatch(rb"bits:64 job:\d+ queue:\d+ base:\d+", LocalServer().client().call("DEBUG", "STRUCTSIZE"))


@pytest.mark.parametrize("word", ["SEGFAULT", "OOM", "ASSERT"])
def test_debug_does_not_crash_on_purpose(word: str) -> None:
    client = LocalServer().client()
    reply = client.call("DEBUG", word)
    assert isinstance(reply, hiredis.ReplyError)
    assert "CRASH-AND-RECOVER" in str(reply)
    assert client.raw("PING") == b"+PONG\r\n"


# CLUSTER


def test_cluster_nodes_has_a_line_for_each_node() -> None:
    client = LocalServer().client()
    me = NODE_ID + b" :7711 myself 0 0 connected\n"
    assert client.call("CLUSTER", "NODES") == me
    assert client.raw("CLUSTER", "MEET", "10.0.0.2", 7712) == OK
    assert client.raw("CLUSTER", "MEET", "10.0.0.2", 7712) == OK
    assert client.raw("CLUSTER", "MEET", "0:0::1", 55535) == OK
    first, second, third = client.call("CLUSTER", "NODES").splitlines(keepends=True)
    assert first == me
    assert re.fullmatch(rb"[0-9a-f]{40} 10.0.0.2:7712 handshake 0 0 disconnected\n", second)
    assert re.fullmatch(rb"[0-9a-f]{40} ::1:55535 handshake 0 0 disconnected\n", third)


def test_cluster_info_counts_nodes() -> None:
    client = LocalServer().client()
    client.call("CLUSTER", "MEET", "10.0.0.2", 7712)
    assert client.call("CLUSTER", "INFO") == (
        b"cluster_state:ok\r\ncluster_known_nodes:2\r\ncluster_reachable_nodes:0\r\ncluster_size:1\r\n"
        b"cluster_stats_messages_sent:0\r\ncluster_stats_messages_received:0\r\n"
        b"cluster_acked_jobs:0\r\ncluster_draining:no\r\ncluster_drain_left:0\r\n"
    )


def test_cluster_myid_is_a_string() -> None:
    assert LocalServer().client().raw("CLUSTER", "MYID") == b"$40\r\n" + NODE_ID + b"\r\n"


def test_cluster_saveconfig_saves_or_tells_why_not() -> None:
    server = LocalServer()
    client = server.client()
    assert client.raw("CLUSTER", "SAVECONFIG") == OK
    assert server.shell.asked == [("save_cluster",)]
    server.shell.failure = OSError(28, "No space left on device")
    assert client.raw("CLUSTER", "SAVECONFIG") == (
        b"-ERR error saving the cluster node config: No space left on device\r\n"
    )


def test_cluster_forget_drops_a_node_for_a_minute() -> None:
    server = LocalServer()
    cluster = server.broker.node.cluster
    cluster.peers[OTHER_ID] = Peer(OTHER_ID, "10.0.0.2", 7712, 0, 0)
    cluster.recount()
    assert server.client().raw("CLUSTER", "FORGET", OTHER_ID) == OK
    assert (list(cluster.peers), cluster.size) == ([NODE_ID], 1)
    assert server.shell.asked == [("save_cluster",)]
    server.advance(59)
    assert OTHER_ID in cluster.blacklist
    server.advance(2)
    assert OTHER_ID not in cluster.blacklist


@pytest.mark.parametrize("word", [[], ["soft"], ["HARD"]])
def test_cluster_reset_leaves_a_node_alone_and_empty(word: list[str]) -> None:
    server = LocalServer()
    client, waiter = server.client(), server.client()
    client.call("ADDJOB", "q", "body", 0)
    client.call("CLUSTER", "MEET", "10.0.0.2", 7712)
    client.call("CLUSTER", "LEAVING", "no")
    waiter.send(["GETJOB", "FROM", "empty"])
    assert client.raw("CLUSTER", "RESET", *word) == OK
    assert waiter.pushed() == [None]
    assert info(server, "jobs")["Jobs"]["registered_jobs"] == "0"
    assert len(client.call("CLUSTER", "NODES").splitlines()) == 1
    my_id = client.call("CLUSTER", "MYID")
    assert (my_id != NODE_ID) == (word == ["HARD"])
    assert re.fullmatch(rb"[0-9a-f]{40}", my_id)
    assert client.call("ADDJOB", "q", "body", 0)[2:10] == my_id[:8]
    assert server.shell.asked[-1] == ("save_cluster",)


def test_cluster_leaving_is_asked_set_saved_and_outlives_a_reset() -> None:
    server = LocalServer()
    client = server.client()
    assert client.raw("CLUSTER", "LEAVING") == b"+no\r\n"
    assert client.raw("CLUSTER", "LEAVING", "Yes") == OK
    assert server.shell.asked == [("save_cluster",)]
    assert client.raw("CLUSTER", "LEAVING") == b"+yes\r\n"
    assert b" myself,leaving " in client.call("CLUSTER", "NODES")
    client.call("CLUSTER", "RESET", "HARD")
    assert client.raw("CLUSTER", "LEAVING") == b"+yes\r\n"
    assert client.raw("CLUSTER", "LEAVING", "no") == OK
    assert client.raw("CLUSTER", "LEAVING") == b"+no\r\n"


def test_a_change_of_the_cluster_holds_even_if_it_cannot_be_saved() -> None:
    server = LocalServer()
    server.shell.failure = OSError(28, "No space left on device")
    client = server.client()
    assert client.raw("CLUSTER", "LEAVING", "yes") == OK
    assert client.raw("CLUSTER", "LEAVING") == b"+yes\r\n"


def test_handshakes_that_nobody_answers_do_not_pile_up_without_end() -> None:
    server = LocalServer()
    client = server.client()
    replies = [
        client.raw("CLUSTER", "MEET", f"10.0.{number // 250}.{number % 250 + 1}", 7711) for number in range(1001)
    ]
    assert replies[:-1] == [OK] * 1000
    assert replies[-1] == b"-ERR too many handshakes under way, try later\r\n"
    server.advance(60)
    assert client.raw("CLUSTER", "MEET", "10.0.9.9", 7711) == OK
