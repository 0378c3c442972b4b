"""Which node to try next, by what HELLO said and what has failed."""

import random
from collections import Counter

import pytest

from penstock.client.addresses import Address
from penstock.client.members import ADDRESSES_MAX, FAILURE_SECONDS, Members
from penstock.client.values import Hello, Node
from penstock.errors import ConnectionLost

NOW = 100.0
SEED, OTHER_SEED = Address("seed", 1), Address("seed", 2)
A, B, C = (Address("10.0.0.1", port) for port in (1, 2, 3))


def node(letter: str, address: Address, priority: int = 1) -> Node:
    return Node(letter * 40, address.host, address.port, priority)


def hello(*nodes: Node) -> Hello:
    return Hello(nodes[0].id, nodes)


@pytest.fixture
def members() -> Members:
    return Members([SEED, OTHER_SEED], random.Random(1))


def test_seeds_are_tried_in_an_order_of_chance() -> None:
    firsts = Counter(Members([SEED, OTHER_SEED], random.Random(at)).next((), NOW) for at in range(100))
    assert min(firsts[SEED], firsts[OTHER_SEED]) > 20


def test_what_was_tried_is_not_tried_again(members: Members) -> None:
    assert members.next({SEED}, NOW) == OTHER_SEED
    assert members.next({SEED, OTHER_SEED}, NOW) is None


def test_the_lowest_priority_is_best(members: Members) -> None:
    members.learn(hello(node("a", A, 10), node("b", B, 1), node("c", C, 5)), A)
    order = []
    while (address := members.next(order, NOW)) is not None:
        order.append(address)
    assert order[:3] == [B, C, A]


def test_a_seed_of_which_nothing_is_known_comes_before_a_node_that_leaves(members: Members) -> None:
    members.learn(hello(node("a", A, 100)), A)
    assert members.next({SEED}, NOW) == OTHER_SEED
    assert members.next({SEED, OTHER_SEED}, NOW) == A


def test_a_node_is_remembered_by_the_address_that_worked(members: Members) -> None:
    members.learn(hello(node("a", A)), SEED)
    assert members.address_of("a" * 40, NOW) == SEED
    members.learn(hello(node("b", B), node("a", A)), B)
    assert members.address_of("a" * 40, NOW) == SEED


def test_a_node_that_fails_where_it_was_is_searched_where_others_say_it_is(members: Members) -> None:
    members.learn(hello(node("a", A)), SEED)
    members.record_failure(SEED, NOW, ConnectionLost("gone"))
    assert members.address_of("a" * 40, NOW) == A


def test_a_node_that_does_not_know_its_own_address_has_the_one_it_was_reached_by(members: Members) -> None:
    members.learn(Hello("a" * 40, (Node("a" * 40, "", 7711, 1),)), SEED)
    assert members.address_of("a" * 40, NOW) == SEED


def test_a_node_without_an_address_is_no_candidate(members: Members) -> None:
    members.learn(Hello("a" * 40, (node("a", A), Node("b" * 40, "", 7711, 1), Node("c" * 40, "10.0.0.9", 0, 1))), A)
    assert members.address_of("b" * 40, NOW) is None
    assert members.next({A, SEED, OTHER_SEED}, NOW) is None


def test_trouble_puts_a_node_behind_all_others_for_a_while(members: Members) -> None:
    members.learn(hello(node("a", A), node("b", B, 100)), A)
    members.record_failure(A, NOW, ConnectionLost("gone"))
    assert members.next({SEED, OTHER_SEED}, NOW + FAILURE_SECONDS / 2) == B
    assert members.next({SEED, OTHER_SEED}, NOW + FAILURE_SECONDS) == A


def test_an_answer_ends_the_trouble(members: Members) -> None:
    members.record_failure(A, NOW, ConnectionLost("gone"))
    members.clear_failure(A)
    assert not members.has_failed(A, NOW)


def test_the_preferred_is_taken_among_equals_only(members: Members) -> None:
    members.learn(hello(node("a", A), node("b", B), node("c", C, 5)), A)
    assert {members.next((), NOW, B) for _ in range(20)} == {B}
    assert members.next((), NOW, C) in {A, B}


@pytest.mark.parametrize(("priority", "is_well"), [(1, True), (5, True), (10, False), (100, False)])
def test_a_node_is_well_as_long_as_others_do_not_doubt_it(members: Members, priority: int, is_well: bool) -> None:
    members.learn(hello(node("a", A), node("b", B, priority)), A)
    assert members.is_healthy("b" * 40, NOW) is is_well


def test_a_node_has_failed_or_unknown_is_not_well(members: Members) -> None:
    members.learn(hello(node("a", A)), A)
    members.record_failure(A, NOW, ConnectionLost("gone"))
    assert not members.is_healthy("a" * 40, NOW)
    assert not members.is_healthy("z" * 40, NOW)


def test_nodes_are_found_by_the_beginning_of_their_id_if_it_is_one_only(members: Members) -> None:
    twins = [Node("b" * 8 + "1" * 32, *B, 1), Node("b" * 8 + "2" * 32, *C, 1)]
    members.learn(hello(node("a", A), *twins), A)
    assert members.by_prefix("a" * 8) == "a" * 40
    assert members.by_prefix("b" * 8) is None
    assert members.by_prefix("c" * 8) is None


def test_addresses_of_others_are_translated() -> None:
    members = Members([SEED], random.Random(1), lambda host, port: (f"outside.{host}", port + 1))
    members.learn(hello(node("a", A), node("b", B)), SEED)
    assert members.address_of("b" * 40, NOW) == Address("outside.10.0.0.1", 3)


def test_memory_of_old_nodes_has_an_end(members: Members) -> None:
    for number in range(ADDRESSES_MAX + 2):
        members.learn(Hello(str(number), (Node(str(number), "h", 1, 1),)), Address("h", number))
    assert members.address_of("0", NOW) is None
    assert members.address_of(str(number), NOW) is not None
