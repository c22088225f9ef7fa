"""What the conformance suite asks of a server that can be broken, and the messages that it sends."""

import json
import unittest
from collections import defaultdict
from collections.abc import Awaitable, Iterable, Sequence
from typing import Any, Protocol
from uuid import UUID, uuid4

from ..transport import InMessage, OutMessage, Transport

PATIENT = 60.0  # seconds after which something that must come to an end is said not to


class Broker(Protocol):
    """A real server that can be broken. What it may have beside these members, each with a test that is skipped without it:

    `async def slow(self) -> None`: alive, but every reply takes a good part of a second from now on, until thaw().
    `def wrong_credentials(self) -> tuple[Transport, str] | None`: a transport that may not enter, and the secret that no
    error may tell; None: the server asks for none.
    `def behind(self, lead_to: Callable[[str, int], int]) -> Transport`: one that reaches the server through the suite, which
    breaks the connection; lead_to(host, port) returns the port of 127.0.0.1 that leads there.
    `def tls(self) -> tuple[Transport, Transport]`: one that speaks TLS with the server, and one that does not trust it.
    `small = True`: it takes seconds for a hundred messages, so it gets a few."""

    def transport(self) -> Transport:
        """A new one each time. It refuses destinations that do not exist, where it can."""
        ...

    def destination(self, name: str) -> str | Awaitable[str]:
        """A new and empty one; with `async def` too."""
        ...

    def missing(self) -> str | None:
        """One that does not exist; None: every name does."""
        ...

    async def read(self, destination: str) -> Sequence[InMessage]:
        """All that is stored, in order."""
        ...

    async def kill(self) -> None: ...

    async def start(self) -> None: ...

    async def freeze(self) -> None: ...

    async def thaw(self) -> None: ...

    async def fill(self, destination: str) -> bool | str | None:
        """Leave it no room, and return True; or return the name of another that has none. False or None: it cannot be."""
        ...


async def destination_of(server: Broker, name: str) -> str:
    made = server.destination(name)
    return made if isinstance(made, str) else await made


def optional(server: Broker, name: str) -> Any:
    """A member that not every broker has; without it the test is skipped."""
    found = getattr(server, name, None)
    if found is None:
        raise unittest.SkipTest(f"{type(server).__name__} has no {name}()")
    return found


def fewer(server: Broker, count: int) -> int:
    return max(11, count // 8) if getattr(server, "small", False) else count


def message_to(destination: str, position: int, key: str | None, body: bytes | None = None) -> OutMessage:
    event_id = uuid4()
    return OutMessage(
        str(event_id),
        position,
        "conformance",
        key,
        destination,
        {"ce-id": str(event_id), "ce-type": "conformance", "ce-source": "holdfast"},
        body if body is not None else body_of(event_id, position),
    )


def body_of(event_id: UUID, position: int, fill: int = 0) -> bytes:
    envelope = {
        "specversion": "1.0",
        "id": str(event_id),
        "source": "holdfast",
        "type": "conformance",
        "data": {"n": position, "fill": "x" * fill},
    }
    return json.dumps(envelope, separators=(",", ":")).encode()


def data_of(body: bytes) -> Any:
    return json.loads(body)["data"]


def number_of(stored: InMessage) -> int:
    return int(data_of(stored.body)["n"])


def _first(found: Iterable[InMessage]) -> list[InMessage]:
    """Each id where it comes first: what a reader sees that drops repeats."""
    return list({one.id: one for one in reversed(list(found))}.values())[::-1]


def check_order(stored: Sequence[InMessage], sent: Sequence[OutMessage]) -> None:
    """Nothing is missing, and within each key each message comes first in the order in which it was sent."""
    by_id = {message.id: message for message in sent}
    found: dict[str | None, list[int]] = defaultdict(list)
    for one in _first(stored):
        found[by_id[one.id].key].append(by_id[one.id].position)
    wanted: dict[str | None, list[int]] = defaultdict(list)
    for message in sent:
        wanted[message.key].append(message.position)
    assert dict(found) == dict(wanted)
