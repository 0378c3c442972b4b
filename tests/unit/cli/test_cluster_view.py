"""What follows from what nodes say about each other: who disagrees, what is wrong, and how it is shown."""

from __future__ import annotations

import json

import pytest

from penstock.cli.cluster.change import find, unacquainted
from penstock.cli.cluster.status import as_json, as_text
from penstock.cli.cluster.view import disagreements, parse_info, parse_nodes, problems
from penstock.client.addresses import Address
from penstock.errors import CallerError
from tests.unit.cli.cluster_data import line, member, node_id, report, trio, view


def test_the_text_of_cluster_nodes_is_read() -> None:
    lines = parse_nodes(
        f"{node_id(1)} :7711 myself 0 0 connected\n"
        f"{node_id(2)} 10.0.0.2:7712 fail?,leaving 5 6 disconnected\n"
        f"{node_id(3)} fe80::1:7713 noflags 0 6 connected\n"
    )
    assert list(lines) == [node_id(1), node_id(2), node_id(3)]
    assert (lines[node_id(2)].host, lines[node_id(2)].port) == ("10.0.0.2", 7712)
    assert lines[node_id(2)].flags == {"fail?", "leaving"}
    assert not lines[node_id(2)].is_linked
    assert (lines[node_id(3)].host, lines[node_id(3)].flags) == ("fe80::1", frozenset())


@pytest.mark.parametrize(
    "text",
    [
        "PONG",
        f"{node_id(1)} 10.0.0.1:x noflags 0 0 connected",
        f"{node_id(1)} 10.0.0.1:7711@17711 myself,master - 0 0 1 connected",
    ],
)
def test_what_is_no_list_of_nodes_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_nodes(text)


def test_the_text_of_info_is_read() -> None:
    assert parse_info("# Server\r\ntcp_port:7711\r\n\r\nconfig_file:/a:b\r\n") == {
        "tcp_port": "7711",
        "config_file": "/a:b",
    }


@pytest.mark.parametrize(
    ("flags", "is_linked", "opinion"),
    [
        ((), True, "ok"),
        (("leaving",), True, "ok"),
        ((), False, "no link"),
        (("fail?",), True, "fail?"),
        (("fail", "leaving"), False, "fail"),
        (("noaddr", "fail"), False, "noaddr"),
    ],
)
def test_what_a_node_thinks_of_another(flags: tuple[str, ...], is_linked: bool, opinion: str) -> None:
    assert line(2, *flags, is_linked=is_linked).opinion == opinion


def test_nodes_that_are_well_are_no_reason_to_warn() -> None:
    assert problems(trio()) == []


def test_nodes_that_disagree_are_reported() -> None:
    seen = view(
        member(1, report(1, line(2), line(3)), "itself"),
        member(2, report(2, line(1), line(3, "fail?"))),
        member(3, report(3, line(1), line(2))),
    )
    assert disagreements(seen) == ["The nodes disagree about 10.0.0.1:7713: 10.0.0.1:7712: fail?; 10.0.0.1:7711: ok."]


def test_a_node_that_another_does_not_know_is_reported() -> None:
    seen = view(
        member(1, report(1, line(2)), "itself"),
        member(2, report(2, line(1), line(3))),
        member(3, report(3, line(1), line(2)), "unknown"),
    )
    assert disagreements(seen) == ["The nodes disagree about 10.0.0.1:7713: 10.0.0.1:7712: ok; 10.0.0.1:7711: unknown."]


def test_a_node_that_answers_us_and_nobody_else_is_reported() -> None:
    seen = view(
        member(1, report(1, line(2), line(3, "fail")), "itself"),
        member(2, report(2, line(1), line(3, "fail"))),
        member(3, report(3, line(1), line(2))),
    )
    assert disagreements(seen) == ["10.0.0.1:7713 answers, but the others see it as: fail."]


def test_a_link_that_is_tried_again_and_again_is_no_disagreement_about_a_dead_node() -> None:
    seen = view(
        member(1, report(1, line(2), line(3)), "itself"),
        member(2, report(2, line(1), line(3, is_linked=False))),
        member(3, None, "down", "Connection refused"),
    )
    assert problems(seen) == ["10.0.0.1:7713 can't be asked: Connection refused"]


def test_a_dead_node_that_not_all_have_given_up_is_a_disagreement() -> None:
    seen = view(
        member(1, report(1, line(2), line(3)), "itself"),
        member(2, report(2, line(1), line(3, "fail", is_linked=False))),
        member(3, None, "down", "Connection refused"),
    )
    assert disagreements(seen) == [
        "The nodes disagree about 10.0.0.1:7713: 10.0.0.1:7712: fail; 10.0.0.1:7711: not given up."
    ]


def test_the_table_says_what_nodes_hold_and_who_is_silent() -> None:
    seen = view(
        member(1, report(1, line(2), line(3, "fail"), registered_jobs="12", acked=2), "itself"),
        member(
            2,
            report(2, line(1), line(3, "fail"), flags=("leaving",), draining="yes", drain_left="4"),
            flags=("leaving",),
        ),
        member(3, None, "down", "Connection refused", ("fail",)),
    )
    assert (
        as_text(seen)
        == """\
NODE      ADDRESS        STATE    LINK    SEES  JOBS  ACKED  QUEUES     MEMORY  CLIENTS  VERSION  UP  SENT/RECEIVED
11111111  10.0.0.1:7711  ok       itself   2/2    12      2       0  2.0K/1.0G        2  0.1.0    1m            7/8
22222222  10.0.0.1:7712  leaving  up       2/2     0      0       0  2.0K/1.0G        2  0.1.0    1m            7/8
33333333  10.0.0.1:7713  fail     down       -     -      -       -          -        -  -         -              -

3 nodes, 2 answering.
12 jobs held, copies included (2 of them acked, and not yet removed from all nodes).
10.0.0.1:7712 is draining: it still has 4 jobs.
Warning: 10.0.0.1:7713 can't be asked: Connection refused"""
    )


def test_a_node_of_disque_and_one_that_keeps_its_limit_to_itself_are_shown_too() -> None:
    said = report(1, line(2), penstock_version=None, disque_version="1.0-rc1", memory_limit=None, acked=None)
    text = as_text(view(member(1, said, "itself"), member(2, report(2, line(1)))))
    assert "disque 1.0-rc1" in text
    assert "2.0K/?" in text
    assert "acked ones not counted" in text


def test_the_json_has_the_same_and_can_be_read() -> None:
    facts = json.loads(json.dumps(as_json(trio(registered_jobs="12", draining="yes", drain_left="4"))))
    assert (facts["ok"], facts["known"], facts["answering"], facts["jobs"]) == (True, 3, 3, 12)
    first = facts["nodes"][0]
    assert (first["id"], first["address"], first["memory_limit"]) == (node_id(1), "10.0.0.1:7711", 1 << 30)
    assert (first["draining"], first["drain_left"], first["uptime_seconds"]) == (True, 4, 90)
    silent = as_json(view(member(1, report(1), "itself"), member(2, None, "down", "Connection refused")))
    assert silent["ok"] is False
    assert silent["nodes"][1]["problem"] == "Connection refused"


# Who is meant, and who has yet to meet.


@pytest.mark.parametrize("who", [node_id(2), "2222", "22222222", "10.0.0.1:7712"])
def test_a_node_is_found_by_id_its_beginning_or_address(who: str) -> None:
    assert find(trio(), who).id == node_id(2)


@pytest.mark.parametrize("who", ["222", "4444", "10.0.0.2:7712"])
def test_a_name_that_fits_no_node_is_answered_with_those_there_are(who: str) -> None:
    with pytest.raises(CallerError, match=r"11111111 \(10.0.0.1:7711\)"):
        find(trio(), who)


def test_a_name_that_fits_two_nodes_is_refused() -> None:
    twins = view(member(1, report(1), "itself"), member(1, None))
    with pytest.raises(CallerError, match="fits several of them"):
        find(twins, "1111")


def test_nodes_that_have_yet_to_meet_are_paired_both_ways() -> None:
    new = Address("10.0.0.1", 7713)
    seen = view(
        member(1, report(1, line(2), line(3)), "itself"),
        member(2, report(2, line(1))),
        member(3, report(3, line(2), line(1, is_linked=False))),
    )
    pairs = [(pair.name, str(pair.unseen)) for pair in unacquainted(seen, node_id(3), new)]
    assert pairs == [("10.0.0.1:7712", "10.0.0.1:7713"), ("10.0.0.1:7713", "10.0.0.1:7711")]
    assert unacquainted(trio(), node_id(3), new) == []


def test_a_node_that_nobody_knows_yet_is_to_meet_everybody() -> None:
    new = Address("10.0.0.1", 7714)
    assert [pair.name for pair in unacquainted(trio(), node_id(4), new)] == [
        "10.0.0.1:7711",
        "10.0.0.1:7712",
        "10.0.0.1:7713",
    ]
