"""Requests to addresses that others chose: the guard, and a client that no server can harm.

`settings.py` has what an operator allows, `addresses.py` the table of networks, `guard.py` reads URLs and checks addresses,
`client.py` sends, only `wire.py` uses aiohttp (extra `webhooks`), `names.py` resolves.
"""

from .client import Client, load
from .guard import Target, check_headers, parse, vet
from .reply import Kind, Reply, SendFailed, retry_after
from .settings import Egress, NotAllowed

__all__ = [
    "Client",
    "Egress",
    "Kind",
    "NotAllowed",
    "Reply",
    "SendFailed",
    "Target",
    "check_headers",
    "load",
    "parse",
    "retry_after",
    "vet",
]
