"""A transaction and the caller that waits for it. A caller that leaves prevents the commit; a commit in progress is waited
for. Without that a step could be recorded as cancelled or timed out although its writes are there."""

import asyncio
import threading
from typing import TypeVar

T = TypeVar("T")


class Handover:
    """Which was first: the transaction that is about to commit, or the caller that leaves. It may be in a thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._state = "open"

    def _become(self, state: str) -> bool:
        with self._lock:
            if self._state == "open":
                self._state = state
            return self._state == state

    def commits(self) -> bool:
        """Called by the transaction. False: the caller has left, so nothing may be committed."""
        return self._become("commits")

    def leaves(self) -> bool:
        """Called by the caller. False: it is being committed, so the caller must wait for its end."""
        return self._become("left")


async def settled(transaction: "asyncio.Task[T]", handover: Handover) -> T:
    """Its result. Cancelled before it commits, it ends without a trace; a thread ends by itself, later."""
    try:
        return await asyncio.shield(transaction)
    except asyncio.CancelledError:
        if handover.leaves():
            transaction.cancel()
            await asyncio.wait({transaction})
            raise
    return await transaction
