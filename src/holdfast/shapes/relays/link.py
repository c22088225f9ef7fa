"""The connection of a relay to its destination: opened, closed and waited for here, and nowhere else."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence

from ... import failpoints
from ...runtime.bounded import bounded
from ...transport import LEASE, Confirmed, Outcome, OutMessage, Refused, RetryLater, Transport

CLOSING = 2.0  # seconds that a transport may take to close
KINDS = (Confirmed, RetryLater, Refused)
GRACE = 1.0  # seconds beyond its timeout after which publish() is abandoned


class Link:
    """`certain` makes sure, just before each send, that no other worker sends. `held`: whether that is still so; the
    transport asks it before each write (may_send)."""

    def __init__(
        self,
        transport: Transport,
        timeout: float,
        certain: Callable[[], Awaitable[None]],
        held: Callable[[], bool],
    ) -> None:
        self._transport = transport
        self._timeout = timeout
        self._certain = certain
        self._held = held
        self._is_open = False
        self._opened = 0
        self._changing = asyncio.Lock()
        # A prefix is only one while nobody else writes meanwhile.
        alone = transport.capabilities.in_flight == "prefix"
        self._sending = asyncio.Semaphore(1 if alone else 1000)

    async def send(self, messages: Sequence[OutMessage]) -> Sequence[Outcome]:
        """One outcome for each. Any doubt closes the connection."""
        LEASE.set(self._may_write)  # in the context of this task, and of those that the transport starts
        async with self._sending:
            try:
                opened = await self._open()
            except Exception as error:  # noqa: BLE001 whatever a transport raises, the destination is unreachable
                return _all(messages, RetryLater(f"it cannot be reached: {said(error)}"))
            await self._certain()
            outcomes = await self._publish(messages)
        failpoints.point("relay.sent")
        if _has_doubt(outcomes):
            await self.close(opened)
        return outcomes

    def _may_write(self) -> bool:
        failpoints.point("relay.write")
        return self._held()

    async def _publish(self, messages: Sequence[OutMessage]) -> Sequence[Outcome]:
        try:
            sent = self._transport.publish(messages, timeout=self._timeout)
            outcomes = await bounded(sent, self._timeout + GRACE, "publish()")
        except TimeoutError:
            return _all(messages, RetryLater(f"no answer within {self._timeout:g} s", unknown=True))
        except Exception as error:  # noqa: BLE001 the protocol allows it to raise
            return _all(messages, RetryLater(said(error), unknown=True))
        if len(outcomes) != len(messages) or not all(
            issubclass(kind, KINDS) for kind in set(map(type, outcomes))
        ):
            wrong = f"the transport returned {len(outcomes)} outcomes for {len(messages)} messages"
            return _all(messages, RetryLater(wrong, unknown=True))
        return outcomes

    async def _open(self) -> int:
        if self._is_open and not self._changing.locked():
            return self._opened
        async with self._changing:
            if not self._is_open:
                try:
                    await bounded(self._transport.open(), self._timeout, "open()")
                except BaseException:
                    await self._close()
                    raise
                self._is_open = True
                self._opened += 1
            return self._opened

    async def close(self, opened: int | None = None) -> None:
        """`opened`: only that connection, not one that was opened since."""
        async with self._changing:
            if self._is_open and opened in (None, self._opened):
                self._is_open = False
                await self._close()

    async def _close(self) -> None:
        with contextlib.suppress(Exception):
            await bounded(self._transport.close(), CLOSING, "close()")


def _has_doubt(outcomes: Sequence[Outcome]) -> bool:
    """One of them may be stored. Most often all are confirmed, and none is checked."""
    if set(map(type, outcomes)) == {Confirmed}:
        return False
    return any(isinstance(outcome, RetryLater) and outcome.unknown for outcome in outcomes)


def _all(messages: Sequence[OutMessage], outcome: Outcome) -> list[Outcome]:
    return [outcome] * len(messages)


def said(error: BaseException) -> str:
    """The text of an error, on one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
