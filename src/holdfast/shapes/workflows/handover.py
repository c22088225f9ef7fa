"""A transaction and whoever waits for it. Who leaves says so, and it does not commit; a commit that is under way is waited
for. Without that a step could be recorded as cancelled or timed out although its writes are there."""

import asyncio
import threading
from typing import TypeVar

T = TypeVar("T")


class Handover:
    """Who was first: the transaction that is about to commit, or the caller who leaves. It may be in a thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._state = "open"

    def _become(self, state: str) -> bool:
        with self._lock:
            if self._state == "open":
                self._state = state
            return self._state == state

    def commits(self) -> bool:
        """Asked by the transaction. False: the caller has left, so nothing may stay."""
        return self._become("commits")

    def leaves(self) -> bool:
        """Asked by the caller. False: it is being committed, so its end is to be waited for."""
        return self._become("left")


async def settled(transaction: "asyncio.Task[T]", handover: Handover) -> T:
    """What it returns. Cancelled before it commits: it ends without a trace, a thread by itself and later."""
    try:
        return await asyncio.shield(transaction)
    except asyncio.CancelledError:
        if handover.leaves():
            transaction.cancel()
            await asyncio.wait({transaction})
            raise
    return await transaction
