"""What kind of server answers, and what follows from it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pymongo import WriteConcern

from penstock.errors import StoreError

WIRE_VERSION_MIN = 9  # MongoDB 4.4, the first that makes collections within transactions


@dataclass(frozen=True)
class ServerKind:
    """A replica set, or a server of its own."""

    is_replica_set: bool
    wire_version: int

    @property
    def write_concern(self) -> WriteConcern:
        """What confirms a write: a majority, or the journal of the one server."""
        return WriteConcern("majority") if self.is_replica_set else WriteConcern(1, j=True)


def server_kind(hello: Mapping[str, Any], where: str) -> ServerKind:
    """Return the kind by the reply to `hello`. Raises StoreError for a server that can't be used."""
    if hello.get("msg") == "isdbgrid":
        raise StoreError(
            f"{where} must be a replica set or a single server, got mongos, the router of a sharded cluster: "
            "name the members of one replica set in the URL"
        )
    wire_version = int(hello.get("maxWireVersion", 0))
    if wire_version < WIRE_VERSION_MIN:
        raise StoreError(f"{where} must be MongoDB 4.4 or newer, got one of wire version {wire_version}")
    return ServerKind("setName" in hello, wire_version)
