"""What a broker has to be for `@app.consume(...)`: five methods, and no base class."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class InMessage:
    """One message of a broker."""

    id: str  # the sender's: CloudEvents id, Nats-Msg-Id, message_id; else "<partition>:<offset>", never a digest
    body: bytes
    receipt: object  # what ack() and release() take
    headers: Mapping[str, str] = field(default_factory=dict)
    key: str | None = None
    source: str = ""  # where exactly it was: a subject, a topic
    redelivered: bool = False


class Source(Protocol):
    """Reads messages of a broker. No retry and no reconnect inside: after any error it is closed and opened again."""

    async def open(self) -> None: ...

    async def close(self) -> None:
        """Also after an error, and twice."""
        ...

    async def receive(self, limit: int, *, wait: float) -> Sequence[InMessage]:
        """Up to `limit` messages; none after `wait` seconds without one."""
        ...

    async def ack(self, receipts: Sequence[object]) -> None:
        """They are done with. Comes after the commit; where it is lost they come again, and are dropped."""
        ...

    async def release(self, receipts: Sequence[object], *, delay: float) -> None:
        """They are to come again, to anybody."""
        ...
