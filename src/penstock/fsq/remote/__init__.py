"""Items to other machines: JSON-RPC over HTTP.

`push` sends an item to the server (`fsq jsonrpcd`) of another machine, which puts it under the same name into one of
its queues. A reply that got lost is no harm: sending again changes nothing. The item stays where it is at the sender;
whoever pushes completes it.
"""

from penstock.fsq.remote import v1
from penstock.fsq.remote.client import push, remote_trigger_pull

__all__ = ["push", "remote_trigger_pull", "v1"]
