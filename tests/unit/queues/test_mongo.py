"""What is known of MongoDB without a server: which are refused, what confirms a write, and ids of ordered jobs."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import CallerError, StoreError
from penstock.queues import blocking
from penstock.queues.stores.mongo.layout import key_of_text, key_text
from penstock.queues.stores.mongo.server import server_kind

NEW_ID = "0199f0a5-0000-5000-8000-000000000000"


def test_the_router_of_a_sharded_cluster_is_refused_by_name() -> None:
    with pytest.raises(StoreError, match=r"got mongos, the router of a sharded cluster"):
        server_kind({"msg": "isdbgrid", "maxWireVersion": 17}, "mongodb://h/db")
    with pytest.raises(CallerError, match="sharded clusters are not supported"):
        blocking.connect("mongodb://h/db?loadBalanced=true")


def test_a_server_that_is_too_old_is_refused() -> None:
    with pytest.raises(StoreError, match=r"must be MongoDB 4\.4 or newer"):
        server_kind({"maxWireVersion": 8}, "mongodb://h/db")


def test_writes_are_confirmed_by_a_majority_or_by_the_journal_of_a_single_server() -> None:
    assert server_kind({"setName": "rs0", "maxWireVersion": 17}, "").write_concern.document == {"w": "majority"}
    assert server_kind({"maxWireVersion": 17}, "").write_concern.document == {"w": 1, "j": True}


@pytest.mark.parametrize(
    "key", ["a", "a:b", "a:", "=", "=a", f"a:{NEW_ID}", 1, 4.5, True, {"a": 1}, "ü", '"', "a:=1", f"=1:{NEW_ID}"]
)
@pytest.mark.parametrize("entry_id", [None, NEW_ID])
def test_the_id_of_an_ordered_job_names_its_key_and_its_own_id(key: Any, entry_id: str | None) -> None:
    found, found_id = key_of_text(key_text(key, entry_id))
    assert (found, type(found), found_id) == (key, type(key), entry_id)


def test_a_job_without_a_key_has_its_own_id_alone() -> None:
    assert key_text(NEW_ID, NEW_ID) == NEW_ID
    assert key_of_text(NEW_ID) == (NEW_ID, None)
